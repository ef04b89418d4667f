"""Parts of a split run that are in the same epoch are told apart by sketches, and one of them goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_drift import LIMIT, honest, told
from test_spreading import OWN, Optimizer, others

from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.spreading import AGAIN_EPOCHS, OTHERS_GO_ON, Spreading
from dalle_lib.swarm.process.drift import Sketch, Spread, near
from dalle_lib.swarm.process.events import EventLog


def part(name: str, users: int, off: float, way: int, epoch: int = 5) -> dict[str, str]:
    """Return the sketches of users whose parameters went the same way."""
    return {f"{name}{number}": told(off + 0.001 * number, seed=way, epoch=epoch) for number in range(users)}


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_part_of_most_users_goes_on_and_neither_of_equal_ones_in_whatever_order_they_are_heard(
    first, second, random
):
    parts = {"b": part("b", first, 0.3, 1), "a": part("a", second, 0.3, 7)}
    sketches = list((parts["b"] | parts["a"]).items())
    random.shuffle(sketches)
    off = Spread.of(dict(sketches), {}).off(LIMIT)
    leaves = "" if first == second else "a" if first > second else "b"
    assert set(off) == set(parts.get(leaves, {}))


@pytest.mark.parametrize("liars", [3, 11, 12])
def test_liars_cannot_choose_who_is_left_out_of_the_part_of_most_users(liars):
    mine, ways = honest(12), np.random.default_rng(0)
    values = np.stack([Sketch.read(text).values for text in mine.values()])
    middle, way = values.mean(0), ways.normal(size=64)

    def inside(off: float) -> int:
        lie = middle + off * way
        return int((np.linalg.norm(values - lie, axis=1) <= LIMIT * np.linalg.norm(lie)).sum())

    reach = np.linalg.norm(middle) / np.linalg.norm(way)
    just_two_out = [off for off in np.linspace(0, 3 * LIMIT * reach, 20_000) if inside(off) == len(mine) - 2]
    lie = str(Sketch(5, middle + just_two_out[len(just_two_out) // 2] * way))
    spread = Spread.of(mine | {f"z{number}": lie for number in range(liars)}, {})
    assert not set(spread.off(LIMIT)) & set(mine)


def test_near_are_peers_with_like_parameters_after_the_same_updates_and_the_peer_itself():
    assert near(honest(4), "P1", LIMIT) == set(honest(4))
    others = part("a", 2, 0.3, 1) | honest(4, epoch=4) | {"silent": "", "later": "what a later version says"}
    assert near(others | {"own": told()}, "own", LIMIT) == {"own"}


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
        (part("x", 1, 0.3, 1), part("a", 2, 0.3, 7), False),  # halves: ids, which can be chosen, decide nothing
        (part("x", 1, 0.3, 1), part("z", 2, 0.3, 7), False),
        (part("x", 1, 0.3, 1), part("z", 3, 0.3, 7), True),
        (part("x", 2, 0.3, 1), part("a", 2, 0.3, 7), False),
        (part("x", 1, 0.3, 1), part("a", 1, 0.3, 7), False),  # one other may be damaged
        (part("x", 1, 0.3, 1), part("a", 2, 0.3, 7) | part("w", 1, 0.3, 1, epoch=6), False),  # of which part is it?
        (part("x", 1, 0.3, 1), part("a", 3, 0.3, 7) | part("w", 1, 0.3, 1, epoch=6), False),
        (part("x", 1, 0.3, 1), part("a", 4, 0.3, 7) | part("w", 1, 0.3, 1, epoch=6), True),
        (part("x", 1, 0.3, 1), part("a", 2, 0.3, 7) | {"w0": ""}, False),  # as one that two liars hang up on
        (part("x", 1, 0.3, 1), part("a", 3, 0.3, 7) | {"w0": ""}, False),
        (part("x", 1, 0.3, 1), part("a", 4, 0.3, 7) | {"w0": ""}, True),
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


def test_one_user_with_many_peers_is_one_user(spreading):
    lies = {f"liar-{number}": text for number, text in enumerate(part("a", 6, 0.3, 7).values())}
    spreading._optimizer.trust.user_of = lambda peer: peer.split("-")[0]
    assert mend(spreading, OWN_PART, part("x", 1, 0.3, 1) | lies) == []


def test_who_is_off_alone_is_damaged_and_no_part(spreading):
    ((why, by),) = mend(spreading, str(Sketch(5, np.full(64, 9.0))), honest(3))
    assert why.startswith("the parameters of this peer were off by")
    assert by is None
