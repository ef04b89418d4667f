"""A peer sends no faster than its volunteer allows, all of its processes together."""

import asyncio
import multiprocessing
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st
from one_hot import OneHotSwarm, one_hot_card

from dalle_lib.planning.constants import FRAMES
from dalle_lib.swarm.averaging import donors
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.shares import shares_of
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import LATE_S, REDUCES_FROM_MBPS, Upload

MBPS = 0.8
PER_S = 1e6 / 8 * MBPS
ADA, BOB, EVE = map(PeerID, (b"ada", b"bob", b"eve"))
PART_BYTES = 2**16


class Clock:
    """A clock that goes on when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def allowed(seconds: float, largest: int) -> float:
    """Return how many bytes may be sent in so many seconds."""
    return PER_S * (seconds + LATE_S) + FRAMES * largest + 1e-3


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 400_000)), min_size=1, max_size=12))
def test_in_no_time_is_more_sent_than_the_limit_allows_and_no_less_when_there_is_enough_to_send(messages):
    clock, went = Clock(), []
    upload = Upload(MBPS, clock)
    for pause_s, size in messages:
        clock.now += pause_s
        while (wait_s := upload.claim(size)) > 0:
            clock.now += wait_s
        went.append((clock.now, FRAMES * size))
    for first, (began, _) in enumerate(went):
        for last in range(first, len(went)):
            ended, sizes = went[last][0], [size for _, size in went[first : last + 1]]
            assert sum(sizes) <= allowed(ended - began, int(max(sizes)))
    assert upload.sent_bytes == pytest.approx(sum(size for _, size in went), abs=1)
    backlog_from = clock.now
    for _ in range(20):
        while (wait_s := upload.claim(PART_BYTES)) > 0:
            clock.now += wait_s
    owed = went[-1][1] + 20 * FRAMES * PART_BYTES
    assert clock.now - backlog_from <= owed / PER_S, "a line that is free for it was not used"


def test_without_a_limit_messages_are_counted_and_go_at_once():
    upload = Upload()
    assert [upload.claim(10**9) for _ in range(3)] == [0.0, 0.0, 0.0]
    upload.receive(1000)
    assert (upload.sent_bytes, upload.received_bytes) == pytest.approx((3e9 * FRAMES, 1000 * FRAMES), abs=1)


def test_a_message_that_is_called_off_while_it_waits_costs_nothing():
    clock = Clock()
    upload = Upload(MBPS, clock)

    async def called_off() -> None:
        await upload.send(100_000)
        waiting = [asyncio.create_task(upload.send(100_000)) for _ in range(5)]
        await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)

    asyncio.run(called_off())
    clock.now += FRAMES * 100_000 / PER_S
    assert upload.claim(100_000) == 0.0
    assert upload.sent_bytes == pytest.approx(2 * FRAMES * 100_000, abs=1)


def send_some(upload: Upload, count: int) -> None:
    async def some() -> None:
        await asyncio.gather(*(upload.send(5000) for _ in range(count)))

    asyncio.run(some())


def test_two_processes_share_one_limit():
    upload, fork = Upload(MBPS), multiprocessing.get_context("fork")
    began = time.monotonic()
    senders = [fork.Process(target=send_some, args=(upload, 10)) for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    took_s = time.monotonic() - began
    assert [sender.exitcode for sender in senders] == [0, 0]
    assert upload.sent_bytes == pytest.approx(20 * FRAMES * 5000, abs=1)
    assert upload.sent_bytes <= allowed(took_s, 5000)


@pytest.mark.parametrize(("mbps", "states"), [(None, 4), (20.0, 4), (3.0, 3), (1.1, 1), (0.9, 0)])
def test_a_slow_donor_gives_its_state_to_no_more_than_get_it_in_time(mbps, states):
    assert donors.states_at_once(Upload(mbps).bytes_per_s) == states
    line = donors.Line(states)
    assert line.join(ADA) == (states > 0), "who cannot have it in time asks another donor at once"
    others = [PeerID(bytes([number])) for number in range(states)]
    for other in others if states else ():
        assert line.join(other)
        assert line.place_of(other) == max(0, others.index(other) + 2 - states)


def test_a_newcomer_gets_a_state_a_few_times_an_hour(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(donors, "time", SimpleNamespace(monotonic=clock))
    line = donors.Line()
    for _ in range(donors.MAX_TURNS):
        assert line.join(ADA)
        line.leave(ADA)  # it hung up before its turn, which costs nothing
        assert line.join(ADA)
        assert line.place_of(ADA) == 0
        clock.now += 60.0
        line.leave(ADA)
    assert not line.join(ADA)
    assert line.join(BOB)
    clock.now += donors.TURNS_S
    assert line.join(ADA)


def test_a_peer_with_a_low_limit_reduces_only_where_nobody_else_can():
    spares, reduces, client = Introduction(is_sparing=True), Introduction(), Introduction(is_reducer=False)
    assert shares_of({ADA: spares, BOB: reduces, EVE: client}, Trust()) == [0, 1, 0]
    assert shares_of({ADA: spares, BOB: spares, EVE: client}, Trust()) == [1, 1, 0]
    assert [Upload(mbps).spares for mbps in (None, REDUCES_FROM_MBPS, 10.0)] == [False, False, True]


@pytest.mark.chaos
def test_peers_that_average_send_no_faster_than_one_of_them_may(mini, swarm_folder):
    card = one_hot_card(mini, state_every=1000, timeout_s=40.0, part_bytes=PART_BYTES)
    with OneHotSwarm(card, swarm_folder) as swarm:
        free, slow = swarm.add(size=150_000), swarm.add(size=150_000, max_upload_mbps=MBPS)
        swarm.go()
        swarm.wait(lambda: len(swarm.together([free, slow], after=-1)) >= 3)
        for before, done in pairwise(slow.events("Round")):
            assert done["bytes_sent"] <= allowed(done["time"] - before["time"], PART_BYTES), swarm.told()
        for epoch in swarm.together([free, slow], after=-1)[:3]:
            own, other = slow.rounds()[epoch], free.rounds()[epoch]
            assert (own["error"], other["error"]) == (None, None), swarm.told()
            assert 0 < own["bytes_sent"] == other["bytes_received"], "the slow one has reduced a part"
            # The other has the average before its last answers are sent.
            assert 0 < other["bytes_sent"] <= own["bytes_received"]
