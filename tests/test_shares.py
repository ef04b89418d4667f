"""Who reduces how much: the same for all who compute it, and no minority of users decides."""

import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st

from dalle_lib.swarm.averaging.carried import STEPS, mark_of
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.shares import (
    EQUAL_EVERY,
    MAX_MULTIPLE,
    NEAR,
    WHOLE,
    caps,
    filled_up,
    levels_of,
    rate_of,
    shares_of,
)
from dalle_lib.swarm.averaging.trust import Trust

PEERS = [PeerID(bytes([18, 32]) + bytes([number]) * 32) for number in range(16)]
SLOW, FAST = 80, 80 + 4 * STEPS  # about 1 and 16 MB/s


class Users(Trust):
    """The trust of a run with members, whose users and vouched peers are given."""

    users: Mapping[str, str]
    vouched: frozenset[str]

    def user_of(self, peer_id: str) -> str:
        return self.users.get(peer_id, peer_id)

    def is_vouched(self, peer_id: str) -> bool:
        return peer_id in self.vouched


def trust(users: dict[int, str] | None = None, vouched: tuple[int, ...] = ()) -> Trust:
    made = Users(measures=True)
    object.__setattr__(made, "users", {str(PEERS[number]): user for number, user in (users or {}).items()})
    object.__setattr__(made, "vouched", frozenset(str(PEERS[number]) for number in vouched))
    return made


def tells(levels: dict[int, int]) -> bytes:
    return b"".join(mark_of(PEERS[number]) + bytes([level]) for number, level in levels.items())


def group(levels: list[int], lies: dict[int, dict[int, int]] | None = None, epoch: int = 1) -> dict:
    """Return what a group of peers of these levels tells: the truth about all others, but for those that lie."""
    told = {}
    for number, peer in enumerate(PEERS[: len(levels)]):
        truth = {other: level for other, level in enumerate(levels) if other != number}
        told[peer] = Introduction(epoch=epoch, carried=tells((lies or {}).get(number, truth)))
    return told


def parts(levels: list[int], *of_trust, **options) -> list[float]:
    shares = shares_of(group(levels, **options), trust(*of_trust))
    return [share / sum(shares) for share in shares]


def test_who_is_slow_reduces_nothing_where_others_can():
    assert parts([SLOW, SLOW, FAST, FAST]) == [0, 0, 0.5, 0.5]
    assert parts([SLOW] * 6 + [FAST] * 2) == [0] * 6 + [0.5] * 2


def test_equal_links_reduce_alike_and_somewhat_faster_ones_somewhat_more():
    assert parts([SLOW] * 4) == pytest.approx([0.25] * 4, abs=1e-4)
    assert parts([SLOW, SLOW, SLOW + NEAR, SLOW - NEAR]) == parts([SLOW] * 4)
    slower, *_, faster = shares = parts([SLOW, SLOW, SLOW, SLOW + NEAR + 1])
    assert 0.1 < slower < 0.25 < faster <= 0.5
    assert sum(shares) == pytest.approx(1)


def test_shares_leave_the_fullest_link_as_little_to_do_as_any_others_could():
    """The reference: the same in fractions, where the moment at which all is shared out follows from who gets any."""
    for seed in range(200):
        chosen = random.Random(seed)
        levels = [chosen.randint(0, 80) for _ in range(chosen.randint(3, 12))]
        rates, senders = [Fraction(rate_of(level)) for level in levels], len(levels)
        for count in range(len(rates), 0, -1):
            best = sorted(rates, reverse=True)[:count]
            moment = Fraction(senders - 2 + count) / sum(best)
            if moment * best[-1] >= 1:
                break
        expected = [max(Fraction(0), moment * rate - 1) / (senders - 2) for rate in rates]
        found = filled_up(levels, [WHOLE] * len(levels), senders)
        assert sum(found) == WHOLE
        assert [share / WHOLE for share in found] == pytest.approx(list(map(float, expected)), abs=len(levels) / WHOLE)


@given(st.lists(st.integers(0, 255), min_size=3, max_size=16), st.randoms(use_true_random=False))
def test_shares_are_integers_that_sum_up_under_their_caps_whatever_is_told(levels, chosen):
    vouched = tuple(chosen.sample(range(len(levels)), chosen.randint(0, len(levels))))
    run, reducers = trust(vouched=vouched), PEERS[: len(levels)]
    most, shares = caps(reducers, run), shares_of(group(levels), run)
    assert all(type(share) is int and 0 <= share <= cap for share, cap in zip(shares, most, strict=True))
    assert sum(shares) == WHOLE


def test_the_order_in_which_others_measured_does_not_matter():
    levels = [SLOW, SLOW + 3, FAST, FAST - 7, SLOW + 9]
    told = group(levels)
    for peer, of in told.items():
        entries = [of.carried[place : place + 9] for place in range(0, len(of.carried), 9)]
        told[peer] = replace(of, carried=b"".join(reversed(entries)))
    assert shares_of(told, trust()) == shares_of(group(levels), trust())


def test_who_is_measured_by_less_than_two_users_is_taken_for_a_typical_one():
    silent = {number: {} for number in range(4)}
    assert parts([SLOW] * 4, lies=silent) == [0.25] * 4
    one = silent | {0: {1: FAST, 2: SLOW, 3: SLOW}}
    assert parts([SLOW] * 4, lies=one) == pytest.approx([0.25] * 4, abs=1e-4)


def test_a_peer_that_tells_of_itself_moves_nothing():
    levels = [SLOW, SLOW, FAST, FAST, SLOW]
    boast = {number: level for number, level in enumerate(levels) if number} | {0: 255}
    assert parts(levels, lies={0: boast}) == parts(levels)


@pytest.mark.parametrize("level", [0, 255])
def test_a_minority_of_users_moves_no_level_further_than_noise_does(level):
    levels = [SLOW, SLOW + 5, FAST, FAST - 5, SLOW + 9, FAST, SLOW]
    lies = {number: dict.fromkeys(range(7), level) for number in (0, 1)}
    reducers = PEERS[:7]
    found = levels_of(group(levels, lies=lies), reducers, str)
    assert all(abs(one - honest) <= NEAR for one, honest in zip(found, levels, strict=True))


def test_many_peers_of_one_user_have_one_vote_and_none_about_each_other():
    levels = [SLOW] * 4 + [FAST] * 3
    users = dict.fromkeys(range(4), "eve")
    lies = {number: dict.fromkeys(range(4), 255) | dict.fromkeys(range(4, 7), 0) for number in range(4)}
    honest, moved = parts(levels, users), parts(levels, users, lies=lies)
    assert moved == honest
    assert moved[:4] == [0] * 4


def test_of_two_users_who_measured_a_peer_neither_decides_alone():
    levels = levels_of(group([SLOW] * 3, lies={0: {1: SLOW, 2: 255}}), PEERS[:3], str)
    assert levels == [SLOW] * 3


def test_one_users_peers_get_at_most_four_equal_shares_and_vouched_ones_half_of_all():
    levels = [FAST] * 2 + [0] * 14
    assert parts(levels)[:2] == pytest.approx([MAX_MULTIPLE / 16] * 2, abs=1e-3)
    assert parts(levels, {0: "eve", 1: "eve"})[:2] == pytest.approx([MAX_MULTIPLE / 32] * 2, abs=1e-3)
    assert parts(levels, {}, (0, 1)) == [0.5, 0.5] + [0] * 14


def test_all_reduce_alike_now_and_then_where_the_card_asks_for_it_and_in_pairs():
    levels = [SLOW, SLOW, FAST, FAST]
    assert parts(levels, epoch=EQUAL_EVERY * 3) == [0.25] * 4
    assert shares_of(group(levels), Trust()) == [1] * 4
    assert parts([SLOW, FAST]) == [0.5, 0.5]


def test_who_may_not_reduce_gets_nothing_and_is_believed_as_a_witness():
    told = group([SLOW, SLOW, FAST, FAST, FAST])
    told[PEERS[2]] = replace(told[PEERS[2]], is_reducer=False)
    assert [share / WHOLE for share in shares_of(told, trust())] == [0, 0, 0, 0.5, 0.5]
    for peer in PEERS[1:5]:
        told[peer] = replace(told[peer], is_reducer=False)
    assert [share > 0 for share in shares_of(told, trust())] == [True, False, False, False, False]


def test_a_level_is_an_eighth_of_an_octave():
    assert [rate_of(level) for level in (0, 8, 80)] == [1024, 2048, 2**20]
    assert all(abs(rate_of(level) / 1024 / 2 ** (level / 8) - 1) < 0.001 for level in range(256))
