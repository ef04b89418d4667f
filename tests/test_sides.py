"""Parts of a split run that are in the same epoch are told apart by sketches, and one of them goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_drift import LIMIT, honest, told
from test_spreading import OWN, Optimizer, others

from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.spreading import AGAIN_EPOCHS, OTHERS_GO_ON, Spreading
from dalle_lib.swarm.process.drift import Sketch, sides
from dalle_lib.swarm.process.events import EventLog


def part(name: str, users: int, off: float, way: int, epoch: int = 5) -> dict[str, str]:
    """Return the sketches of users whose parameters went the same way."""
    return {f"{name}{number}": told(off + 0.001 * number, seed=way, epoch=epoch) for number in range(users)}


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_part_of_most_users_comes_first_in_whatever_order_they_are_heard(first, second, random):
    sketches = list((part("b", first, 0.3, 1) | part("a", second, 0.3, 7)).items())
    random.shuffle(sketches)
    found = sides(dict(sketches), {}, LIMIT)
    assert {frozenset(peer[0] for peer in side) for side in found} == {frozenset("a"), frozenset("b")}
    assert min(found[0])[0] == ("b" if first > second else "a")


def test_one_user_with_many_peers_is_one_user():
    lies = part("a", 6, 0.3, 1)
    users = dict.fromkeys(lies, "liar")
    assert sides(honest(2) | lies, users, LIMIT)[0] == {"P0", "P1"}


def test_liars_cannot_choose_who_is_left_out_of_the_part_of_most_users():
    mine, ways = honest(12), np.random.default_rng(0)
    values = np.stack([Sketch.read(text).values for text in mine.values()])
    middle, way = values.mean(0), ways.normal(size=64)

    def inside(off: float) -> int:
        lie = middle + off * way
        return int((np.linalg.norm(values - lie, axis=1) <= LIMIT * np.linalg.norm(lie)).sum())

    reach = np.linalg.norm(middle) / np.linalg.norm(way)
    just_two_out = [off for off in np.linspace(0, 3 * LIMIT * reach, 20_000) if inside(off) == len(mine) - 2]
    lie = str(Sketch(5, middle + just_two_out[len(just_two_out) // 2] * way))
    found = sides(mine | {f"z{number}": lie for number in range(3)}, {}, LIMIT)
    assert [set(mine) <= side for side in found] == [True]


def test_peers_that_are_near_or_of_other_updates_are_no_part():
    assert sides(honest(4), {}, LIMIT) == [set(honest(4))]
    assert sides(honest(3) | part("a", 2, 0.3, 1, epoch=4), {}, LIMIT) == [set(honest(3))]
    assert sides({}, {}, LIMIT) == []


@pytest.fixture
def spreading(tmp_path):
    """What a peer of a run knows whose sketch is that of `part("own", ...)`."""
    optimizer = Optimizer([])
    optimizer.trust.user_of, optimizer.left_for = (lambda peer: peer), []
    optimizer.replace_parameters = lambda why, by=None: optimizer.left_for.append((why, by))
    found = Spreading(RunCard.load("emoji-mini"), optimizer, OWN, EventLog(tmp_path))
    found._epoch = 5
    return found


def mend(spreading: Spreading, own: str, sketches: dict[str, str]) -> list:
    spreading.text = own
    spreading.see([status for peer, text in sketches.items() for status in others(text, peer)])
    spreading.mend()
    return spreading._optimizer.left_for


OWN_PART = part("own", 1, 0.3, 1)["own0"]


@pytest.mark.parametrize(
    ("mates", "theirs", "leaves"),
    [
        (part("x", 1, 0.3, 1), part("a", 2, 0.3, 7), True),  # halves: the first id decides
        (part("x", 1, 0.3, 1), part("z", 2, 0.3, 7), False),
        (part("x", 1, 0.3, 1), part("z", 3, 0.3, 7), True),
        (part("x", 2, 0.3, 1), part("a", 2, 0.3, 7), False),
        (part("x", 1, 0.3, 1), part("a", 1, 0.3, 7), False),  # one other may be damaged
        (part("x", 1, 0.3, 1), part("a", 2, 0.3, 7) | part("w", 1, 0.3, 1, epoch=6), False),  # of which part is it?
        (part("x", 1, 0.3, 1), part("a", 4, 0.3, 7) | part("w", 1, 0.3, 1, epoch=6), True),
    ],
)
def test_a_peer_leaves_its_part_for_one_that_goes_on_once_in_some_epochs(spreading, mates, theirs, leaves):
    left_for = mend(spreading, OWN_PART, mates | theirs)
    assert len(left_for) == leaves
    if leaves:
        ((why, by),) = left_for
        assert (why, by.epoch, by.peers) == (OTHERS_GO_ON, 5, {peer for peer in theirs if peer[0] != "w"})
        assert by.beside == {OWN, *mates, *(peer for peer in theirs if peer[0] == "w")}
        spreading._epoch = 4 + AGAIN_EPOCHS
        assert len(mend(spreading, OWN_PART, mates | theirs | {"another": OWN_PART})) == 1
        spreading._again_from = 1000
        assert mend(spreading, OWN_PART, mates | theirs), "it has gone back since"


def test_who_is_off_alone_is_damaged_and_no_part(spreading):
    ((why, by),) = mend(spreading, str(Sketch(5, np.full(64, 9.0))), honest(3))
    assert why.startswith("the parameters of this peer were off by")
    assert by is None
