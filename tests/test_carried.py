"""What a peer learns of others' uploads from rounds, and remembers."""

import asyncio
import math
import multiprocessing
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID

from dalle_lib.swarm.averaging import paces
from dalle_lib.swarm.averaging.carried import (
    DOUBT,
    ENTRY_BYTES,
    KEPT_ROUNDS,
    MAX_TOLD,
    WIDEST,
    Carried,
    level_of,
    mark_of,
    unpacked,
    updated,
)
from dalle_lib.swarm.averaging.paces import Bounds, Paces

ADA, BOB, EVE, OWN = (PeerID(bytes([18, 32]) + name.encode() * 8) for name in ("ada.", "bob.", "eve.", "own."))


class Clock:
    """A clock that stands still until it is told how much later it is."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(paces, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def message(size_bytes: int) -> SimpleNamespace:
    return SimpleNamespace(tensor_part=SimpleNamespace(ByteSize=lambda: size_bytes))


def receive(clock: Clock, seen: Paces, sender: PeerID, waits_s: list[float], busy_s: float) -> None:
    """Let parts of 1000 bytes come from a sender, each after this peer has waited for it, and was busy before."""

    async def parts():
        for wait_s in waits_s:
            clock.now += wait_s
            yield message(1000)

    async def take() -> None:
        async for _ in seen.timed(sender, parts()):
            clock.now += busy_s

    asyncio.run(take())


def test_a_link_is_measured_only_while_it_is_waited_for(clock):
    seen = Paces()
    receive(clock, seen, ADA, [9.0, *[0.5] * 8], busy_s=0.0)  # the first may be late for other reasons
    receive(clock, seen, BOB, [0.0, *[0.1] * 8], busy_s=0.4)
    bounds = seen.bounds([OWN, ADA, BOB], [1, 0, 0], OWN)
    assert bounds[ADA].low == bounds[ADA].high == pytest.approx(2000)
    assert bounds[BOB].low == pytest.approx(2000)
    assert bounds[BOB].high == pytest.approx(10_000)


def test_what_a_peer_sends_to_others_and_gives_back_meanwhile_counts_as_carried(clock):
    seen = Paces()
    receive(clock, seen, ADA, [0.0, *[0.5] * 8], busy_s=0.0)
    # Ada sends a quarter to each of three others, and gives the average of a quarter to the same three
    assert seen.bounds([OWN, ADA, BOB, EVE], [1, 1, 1, 1], OWN)[ADA].high == pytest.approx(2000 * 6)
    # or of twice as many bytes, where answers have more bits
    in_four_bits = Paces(answer_size=2)
    receive(clock, in_four_bits, ADA, [0.0, *[0.5] * 8], busy_s=0.0)
    assert in_four_bits.bounds([OWN, ADA, BOB, EVE], [1, 1, 1, 1], OWN)[ADA].high == pytest.approx(2000 * 9)
    # she sends this peer and Bob a half each, and gives nothing
    assert seen.bounds([OWN, ADA, BOB, EVE], [1, 0, 1, 0], OWN)[ADA].high == pytest.approx(2000 * 2)


def test_parts_for_a_peer_that_reduces_none_tell_nothing(clock):
    seen = Paces()
    receive(clock, seen, EVE, [0.5] * 9, busy_s=0.0)
    assert not seen.bounds([OWN, EVE, BOB], [0, 0, 1], OWN)


@pytest.mark.parametrize(("parts", "wait_s"), [(4, 9.0), (9, 0.1)], ids=["few parts", "a short time"])
def test_a_short_stream_tells_nothing(clock, parts, wait_s):
    seen = Paces()
    receive(clock, seen, ADA, [wait_s] * parts, busy_s=0.0)
    assert not seen.bounds([OWN, ADA], [1, 0], OWN)


def test_a_sender_that_falls_silent_is_slow(clock):
    seen = Paces()

    async def parts():
        for _ in range(6):
            yield message(1000)
        clock.now += 50
        raise TimeoutError

    async def take() -> None:
        with pytest.raises(TimeoutError):
            async for _ in seen.timed(ADA, parts()):
                pass

    asyncio.run(take())
    assert seen.bounds([OWN, ADA], [1, 0], OWN)[ADA].high == pytest.approx(100)


def test_a_reducer_whose_averages_come_late_is_not_taken_to_be_slow(clock):
    """They wait for all senders, of whom one may send slowly to this reducer alone."""
    seen = Paces()
    for _ in range(6):
        clock.now += 0.3
        seen.answered(ADA, 1000)
        seen.answered(BOB, 1000)
    for _ in range(6):
        clock.now += 1.0
        seen.answered(EVE, 1000)
    bounds = seen.bounds([OWN, ADA, BOB, EVE], [0, 1, 1, 1], OWN)
    assert all(math.isinf(bounds[peer].high) for peer in (ADA, BOB, EVE))
    # Eve gave three peers 5000 bytes within 7.5 seconds of the first average, while she sent two others 10,000
    assert bounds[EVE].low == pytest.approx(5000 * 5 / 7.5)


def test_levels_meet_the_bounds_and_rise_where_a_peer_was_hardly_waited_for():
    exact, open_ = Bounds(1e6, 1e6), Bounds(1e6, 8e6)
    assert updated(None, Bounds(1e6)) is None
    assert updated(None, exact) == level_of(1e6)
    assert level_of(1e6) < updated(None, open_) < level_of(8e6)
    assert updated(None, Bounds(1e6, 1e12)) == level_of(1e6) + WIDEST / 2
    high = level_of(1e6) + 60
    for _ in range(20):
        high = updated(high, exact)
    assert high == pytest.approx(level_of(1e6), abs=0.01)
    assert level_of(8e6) - level_of(1e6) > DOUBT
    rising = [level_of(1e6)]
    while len(rising) < 30:
        rising.append(updated(rising[-1], open_))
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(level_of(8e6), abs=0.1)
    slow_round = Bounds(1e4, 1e9)  # in which somebody else kept all waiting
    assert updated(level_of(1e6), slow_round) == level_of(1e6)
    assert updated(50.0, Bounds(1e3)) == 50.0  # averages tell nothing of what more a reducer can do


def test_what_is_known_is_told_and_bounded_and_forgotten():
    carried = Carried()
    carried.note({ADA: Bounds(1e6, 1e6)})
    assert unpacked(carried.told()) == {mark_of(ADA): round(level_of(1e6))}
    for number in range(MAX_TOLD):
        carried.note({PeerID(bytes([18, 32]) + bytes([number]) * 32): Bounds(1e6, 1e6), BOB: Bounds(2e6, 2e6)})
    told = unpacked(carried.told())
    assert mark_of(BOB) in told
    assert mark_of(ADA) not in told
    assert len(carried.told()) <= MAX_TOLD * ENTRY_BYTES
    for _ in range(KEPT_ROUNDS):
        carried.note({BOB: Bounds(2e6, 2e6)})
    assert unpacked(carried.told()) == {mark_of(BOB): round(level_of(2e6))}


def test_all_processes_of_a_peer_share_what_it_knows():
    carried = Carried()
    process = multiprocessing.get_context("fork").Process(target=carried.note, args=({ADA: Bounds(1e6, 1e6)},))
    process.start()
    process.join()
    assert unpacked(carried.told())
