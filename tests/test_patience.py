"""How long peers of a round are waited for: who is as the others are is never left out, who is slow costs little."""

import itertools

import pytest
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st

from dalle_lib.swarm.averaging.patience import AGAIN, FEWEST, REDUCER_PATIENCE, SHARE, TYPICAL, Patience

ADA, BOB, CAT, DAN, EVE = PEERS = [PeerID(name) for name in (b"ada", b"bob", b"cat", b"dan", b"eve")]
MOST_S = 100.0
seconds = st.floats(0.0, 50.0)
times = st.lists(seconds, min_size=FEWEST, max_size=len(PEERS) - 1)


def patience(*distances_s: float, least_s: float = 5.0) -> Patience:
    """Return the patience of a peer whose rounds began after such distances."""
    clock = itertools.accumulate(distances_s, initial=0.0)
    made = Patience(least_s, lambda: next(clock))
    for _ in distances_s:
        made.begin()
    return made


def waited(others_s: list[float]) -> dict[PeerID, float]:
    return dict(zip(PEERS[1:], others_s, strict=False)) | {ADA: 0.0}


@given(times, st.floats(0.1, 20.0), seconds, st.integers(0, 9))
def test_a_sender_is_waited_for_within_bounds_that_grow_with_the_waits_for_others(others_s, least_s, longer_s, late):
    of = patience(least_s=least_s)
    for _ in range(late):
        of.note(PEERS, {ADA}, {})
    limit_s = of.for_sender(ADA, waited(others_s), MOST_S)
    assert min(MOST_S, of.spared_s(ADA)) <= limit_s <= MOST_S
    assert limit_s <= of.for_sender(ADA, waited([other + longer_s for other in others_s]), MOST_S)
    assert of.for_sender(ADA, waited(others_s[: FEWEST - 1]), MOST_S) == MOST_S


@given(seconds.filter(bool), st.integers(FEWEST, len(PEERS) - 1), st.integers(0, 99), st.floats(1.0, TYPICAL - 0.1))
def test_who_is_waited_for_as_the_others_are_is_never_left_out(wait_s, others, late, factor):
    of = patience()
    for _ in range(late):
        of.note(PEERS, PEERS, {})
    assert of.for_sender(ADA, waited([wait_s] * others), 1e9) > factor * wait_s
    assert of.for_reducer(ADA, [wait_s] * others, others, 1e9) > wait_s


@given(times, seconds)
def test_a_reducer_is_waited_for_when_half_of_the_others_are_done_and_longer_than_it_waits_itself(done_s, later_s):
    of, others = patience(), len(done_s)
    limit_s = of.for_reducer(ADA, done_s, others, MOST_S)
    enough = max(FEWEST, (others + 1) // 2)
    assert limit_s == min(MOST_S, REDUCER_PATIENCE * (sorted(done_s)[enough - 1] + of.spared_s(ADA)))
    assert limit_s >= min(MOST_S, REDUCER_PATIENCE * of.for_sender(BOB, dict.fromkeys(PEERS, 0.0), MOST_S))
    assert limit_s <= of.for_reducer(ADA, [done + later_s for done in done_s], others, MOST_S)
    assert of.for_reducer(ADA, sorted(done_s)[: enough - 1], others, MOST_S) == MOST_S


def test_a_peer_that_is_late_again_and_again_is_waited_for_less_and_less_until_it_is_in_time():
    of = patience(80.0)
    assert of.spared_s(ADA) == SHARE * 80.0
    for times_late in range(1, 9):
        of.note([ADA, BOB], {ADA}, {})
        assert of.spared_s(ADA) == SHARE * 80.0 / 2**times_late
    assert of.spared_s(BOB) == SHARE * 80.0
    of.note([BOB], set(), {})
    assert of.spared_s(ADA) == SHARE * 80.0 / 2**8, "it was not in that round"
    of.note([ADA], set(), {})
    assert of.spared_s(ADA) == SHARE * 80.0


def test_a_peer_that_has_got_faster_after_many_late_rounds_is_waited_for_again_and_one_that_has_not_costs_little():
    of, waits_s = patience(80.0), []
    for _ in range(10 * AGAIN):
        waits_s.append(of.spared_s(ADA))
        of.note([ADA], {ADA}, {})
    assert [round for round, wait_s in enumerate(waits_s) if wait_s == SHARE * 80.0] == [*range(0, 10 * AGAIN, AGAIN)]
    assert sum(waits_s) < 0.02 * 80.0 * len(waits_s), "of the time of all rounds"


@pytest.mark.parametrize(
    ("distances_s", "between_s"),
    [([60.0], 60.0), ([60.0, 4.0], 60.0), ([60.0, 60.0, 0.5], 60.0), ([60.0, 3600.0, 60.0], 60.0), ([8.0], 20.0)],
)
def test_neither_a_round_that_was_tried_again_nor_a_long_sleep_changes_what_is_waited(distances_s, between_s):
    assert patience(*distances_s).spared_s(ADA) == SHARE * between_s


def test_who_was_late_once_is_waited_for_as_long_as_most_are_that_are_in_time_though_one_is_fast():
    of = patience(80.0)
    for _ in range(9):
        of.note(PEERS, {ADA}, {ADA: 5.0, BOB: 8.0, CAT: 8.5, DAN: 0.0})
    assert of.spared_s(ADA) == 8.0
    assert of.for_sender(ADA, {ADA: 7.0, BOB: 0.0, CAT: 0.0, DAN: 0.0}, MOST_S) > 7.0, (
        "when nobody else was waited for yet"
    )
    of.note(PEERS, {ADA}, {ADA: 5.0, BOB: 1.0, CAT: 1.0, DAN: 0.0})
    assert of.spared_s(ADA) == 1.0, "a hopeless one costs as little as the others"
    of.note([BOB], {BOB}, {BOB: 9.0})
    of.note(PEERS, {ADA, CAT, DAN}, {ADA: 9.0, BOB: 30.0, CAT: 9.0, DAN: 9.0})
    assert of.spared_s(ADA) == 1.0, "one alone says nothing of what is usual"
