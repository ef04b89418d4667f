"""No gradient is lost: whatever happens to peers, each update is a mean of gradients, and they make the same ones.

Each peer's gradient is one coordinate (tests/one_hot_peer.py), so parameters show what each gradient counted for.
"""

import asyncio
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.key_manager import GroupKeyManager, is_valid_group
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer, ValueWithExpiration, get_dht_time
from one_hot import OneHotPeer, OneHotSwarm, one_hot_card

from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.progress import PlausibleProgress
from dalle_lib.swarm.averaging.trust import Introduction, Trust

TOLERANCE = 0.02
"""What 8 and 16 bits may do to a sum of weights."""


@pytest.fixture
def card(mini):
    """A run whose peers average parameters only when one of them lacks an update."""
    return one_hot_card(mini, state_every=1000)


def assert_whole(peers: list[OneHotPeer], updates: range, in_flight: int = 0) -> None:
    """Fail unless all those updates are means of gradients, on each of those peers.

    Their weights sum to 1, and at no time are there fewer or more updates than epochs, but for those in flight.
    """
    for peer in peers:
        for update in updates:
            sums = peer.weights(update).sum(1).tolist()
            assert sums == pytest.approx([1.0] * len(sums), abs=TOLERANCE), f"peer {peer.index}, update {update}"
        for epoch, values in peer.states():
            for total in values.sum(1).tolist():
                slack = TOLERANCE * max(1, epoch)
                assert epoch - in_flight - slack <= total <= epoch + slack, f"peer {peer.index}, epoch {epoch}"


def are_equal(peers: list[OneHotPeer], updates: int) -> bool:
    """Whether those peers had the same parameters after so many updates, in the end."""
    first, *others = (peer.after(updates) for peer in peers)
    return all((other - first).abs().max() < 2 * TOLERANCE for other in others)


def assert_equal(peers: list[OneHotPeer], updates: int) -> None:
    """Fail unless they were."""
    assert are_equal(peers, updates), f"after {updates}:\n{[peer.after(updates) for peer in peers]}"


def assert_shares_are_weights(peers: list[OneHotPeer], peer: OneHotPeer, epoch: int) -> None:
    """Fail unless that epoch's gradients counted, on that peer, for their shares of what it says was counted."""
    for weights in peer.weights(epoch + 1)[:, : len(peers)]:
        torch.testing.assert_close(weights, peer.shares(epoch, peers), rtol=0, atol=TOLERANCE)


@pytest.mark.chaos
def test_each_gradient_counts_by_its_samples(mini, swarm_folder):
    epochs = 20
    with OneHotSwarm(one_hot_card(mini, state_every=5), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add(step_s=0.4)]
        swarm.go()
        swarm.wait_for_epoch(epochs)
        assert_whole(peers, range(1, epochs + 1))
        assert len(swarm.together(peers, after=-1)) >= 0.8 * epochs, swarm.told()
        for peer in peers:
            for epoch in range(epochs):
                assert_shares_are_weights(peers, peer, epoch)
            counted = [event["counted"][peer.peer_id] for event in peer.events("Round")]
            assert sum(counted) == peer.events("Round")[-1]["computed"], swarm.told()
        slow = torch.stack([peers[0].shares(epoch, peers)[2] for epoch in range(epochs)])
        assert slow.mean() == pytest.approx(1 / 9, abs=0.05)
        assert_equal(peers, epochs)


def test_a_peer_killed_in_mid_round_costs_the_others_no_update(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        victim = {"dies_in": 2, "sends_before": 2}  # of the four parts of each tensor
        peers = [swarm.add(size=2_000_000, **faults) for faults in ({}, {}, victim)]
        swarm.go()
        survivors = peers[:2]
        swarm.wait_for_epoch(6, survivors)
        assert peers[2].process.returncode == -signal.SIGKILL
        assert all(peer.rounds()[2]["error"] for peer in survivors), "the round was over before the kill"
        assert_whole(survivors, range(1, 6))
        assert_equal(survivors, 5)


@pytest.mark.chaos
def test_a_frozen_peer_catches_up_and_counts_again(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        peers[2].send(signal.SIGSTOP)
        time.sleep(15)
        peers[2].send(signal.SIGCONT)
        thawed_in = peers[0].epoch
        assert thawed_in > 3, swarm.told()
        together = swarm.wait_together(peers, after=thawed_in) + 1
        swarm.wait_for_epoch(together + 3)
        assert_whole(peers[:2], range(1, together + 2))
        assert_equal(peers, together + 2)
        assert peers[2].events("LeftOut") or any(event["error"] for event in peers[2].events("Round"))


@pytest.mark.chaos
@pytest.mark.parametrize("failing", [(0, 1, 2), (2,)], ids=["of all", "of one"])
def test_a_failed_round_leaves_a_peer_its_own_gradient_until_the_next(card, swarm_folder, failing):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(fails_in=[2] if index in failing else []) for index in range(3)]
        swarm.go()
        swarm.wait_for_epoch(6)
        assert_whole(peers, range(1, 6))
        for peer in (peers[index] for index in failing):
            first = next(values for epoch, values in peer.states() if epoch == 3)
            assert (first - peer.after(2))[:, peer.index].tolist() == pytest.approx([1.0] * 3, abs=TOLERANCE)
            assert "own gradient" in peer.rounds()[2]["error"]
        assert_equal(peers, 5)


@pytest.mark.chaos
def test_a_peer_that_joins_late_takes_the_state_over_and_dilutes_no_update(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(3)
        peers.append(swarm.add(found_by=1))
        together = swarm.wait_together(peers, after=3) + 1
        swarm.wait_for_epoch(together + 3)
        assert peers[2].events("joined")[0]["epoch"] >= 3
        assert_whole(peers[:2], range(1, together + 3))
        assert_whole(peers[2:], range(together + 1, together + 3))
        assert_equal(peers, together + 2)


@pytest.mark.chaos
def test_a_peer_that_lags_an_epoch_dilutes_no_update(mini, swarm_folder):
    with OneHotSwarm(one_hot_card(mini, state_every=1), swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        peers[2].process.send_signal(signal.SIGSTOP)  # what it averages with lives on, and is asked by the others
        swarm.wait_for_epoch(peers[2].epoch + 1, peers[:2])
        peers[2].process.send_signal(signal.SIGCONT)
        awake_in = peers[0].epoch
        together = swarm.wait_together(peers, after=awake_in) + 1
        swarm.wait_for_epoch(together + 3)
        assert_whole(peers[:2], range(1, together + 3))
        assert_equal(peers, together + 2)
        assert peers[2].events("LeftOut") or any(event["error"] for event in peers[2].events("Round"))


@pytest.mark.chaos
def test_the_bootstrap_peer_killed_between_rounds_is_missing_from_the_next_and_not_missed(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(dies_after=2), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(3, peers[1:])
        assert peers[0].process.wait() == -signal.SIGKILL
        for peer in peers[1:]:
            assert_shares_are_weights(peers, peer, 2)
            assert peer.shares(2, peers)[0] == 0
        living = [*peers[1:], swarm.add(found_by=1)]
        together = swarm.wait_together(living, after=2) + 1
        swarm.wait_for_epoch(together + 3, living)
        assert_whole(living[:2], range(1, together + 3))
        assert_equal(living, together + 2)


@pytest.mark.chaos
def test_a_peer_trains_on_alone_and_together_again(card, swarm_folder):
    with OneHotSwarm(card, swarm_folder) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(2)
        for peer in peers[1:]:
            peer.stop()
        left_in = peers[0].epoch
        swarm.wait_for_epoch(left_in + 2, peers[:1])
        alone = peers[0].weights(left_in + 2)
        assert alone[:, 0].tolist() == pytest.approx([1.0] * 3, abs=TOLERANCE)
        together = [peers[0], swarm.add(), swarm.add()]
        again = swarm.wait_together(together, after=left_in) + 1
        swarm.wait_for_epoch(again + 3, together)
        assert_whole(peers[:1], range(1, again + 3))
        assert_equal(together, again + 2)


@pytest.mark.chaos
@pytest.mark.parametrize("delayed", ["step", "averaging"])
def test_no_gradient_is_lost_while_updates_are_delayed(mini, swarm_folder, delayed):
    with OneHotSwarm(one_hot_card(mini, state_every=5, delayed=delayed), swarm_folder) as swarm:
        victim = {"dies_in": 4, "sends_before": 2}
        peers = [swarm.add(size=2_000_000, **faults) for faults in ({}, {}, victim)]
        swarm.go()
        survivors = peers[:2]
        swarm.wait_for_epoch(9, survivors)
        assert peers[2].process.returncode == -signal.SIGKILL
        assert all(peer.rounds()[4]["error"] for peer in survivors), "the round was over before the kill"
        assert len(swarm.together(survivors, after=-1)) >= 6
        assert_whole(survivors, range(1, 8), in_flight=1)
        for peer in peers:
            for epoch in range(3):
                assert_shares_are_weights(peers, peer, epoch)
        # A peer that is busy may miss the next averaging of parameters; the one after it makes them equal.
        swarm.wait(lambda: are_equal(survivors, min(peer.epoch for peer in survivors) - 1))


REUNION = """
import sys, time, hivemind
from hivemind.utils.crypto import RSAPrivateKey
from dalle_lib.swarm.averaging.progress import PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust

async def neighbours(dht, node):
    return [id for bucket in node.protocol.routing_table.buckets for id in bucket.nodes_to_peer_id]

async def forget_all(dht, node):
    for id in await neighbours(dht, node):
        del node.protocol.routing_table[id]

def is_alone(dht):
    return not dht.run_coroutine(neighbours)

def are_parted():
    for dht in tables:
        dht.run_coroutine(forget_all)
    return all(map(is_alone, tables))

def wait(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)

def track():
    limits = {"total_epochs": 10, "shortest_epoch_s": 1.0, "metadata_expiration": 4.0}
    refresh = {"default_refresh_period": 0.5, "max_refresh_period": 0.5}
    for dht in tables:
        # A key of its own, as for a peer in a process of its own: two records under one key are one record.
        key = RSAPrivateKey()
        tracker = PlausibleProgress(dht, "run", 100, trust=Trust(), private_key=key, start=True, **limits, **refresh)
        tracker.report_local_progress(0, 1)
        trackers.append(tracker)

def have_met():
    return all(tracker.global_progress.num_peers == 2 for tracker in trackers)

local = ["/ip4/127.0.0.1/tcp/0"]
first = hivemind.DHT(start=True, host_maddrs=local)
second = hivemind.DHT(start=True, host_maddrs=local, initial_peers=[str(a) for a in first.get_visible_maddrs()])
tables, trackers = [first, second], []
try:
    wait(lambda: not any(map(is_alone, tables)))
    if sys.argv[1] == "one that it had":
        second.initial_peers = None
        track()
        wait(have_met)
    wait(are_parted)
    if not trackers:
        track()
    wait(lambda: not any(map(is_alone, tables)))
    wait(have_met)
finally:
    for tracker in trackers:
        tracker.shutdown()
    for dht in tables:
        dht.shutdown()
"""


@pytest.mark.parametrize("whom", [pytest.param("the first of the run", marks=pytest.mark.chaos), "one that it had"])
def test_a_peer_that_has_lost_all_others_calls(whom):
    done = subprocess.run([sys.executable, "-c", REUNION, whom], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]


def record(epoch: int, peer: int) -> LocalTrainingProgress:
    """Return what a peer says of itself."""
    return LocalTrainingProgress(
        peer_id=bytes([peer]),
        epoch=epoch,
        samples_accumulated=1,
        samples_per_second=1.0,
        time=get_dht_time(),
        client_mode=False,
    )


@pytest.fixture
def tracker():
    """The tracker of peer 0 in epoch 10 of a run, without a hash table."""
    table = SimpleNamespace(
        peer_id=PeerID(bytes([0])),
        client_mode=False,
        initial_peers=None,
        add_validators=lambda _: None,
        get=lambda *_, **__: None,
    )
    run = {"target_batch_size": 100, "total_epochs": 1000, "shortest_epoch_s": 1.0}
    found = PlausibleProgress(table, "run", trust=Trust(), start=False, **run)
    found.local_progress = record(10, peer=0)
    return found


def progress(tracker: PlausibleProgress, records: list[LocalTrainingProgress]) -> GlobalTrainingProgress:
    told = {record.peer_id: ValueWithExpiration(record.dict(), get_dht_time() + 60) for record in records}
    return tracker._parse_swarm_progress_data(told)


def test_survivors_believe_each_other_when_most_peers_have_died(tracker):
    dead = [record(7, peer) for peer in (2, 3, 4)]
    found = progress(tracker, [record(10, peer=0), record(11, peer=1), *dead])
    assert (found.epoch, found.num_peers) == (11, 5)
    assert progress(tracker, [record(12, peer=1), *dead]).epoch == 10


def test_a_newcomer_does_not_take_one_other_peer_for_none(tracker):
    assert progress(tracker, [record(10, peer=1)]).num_peers == 2
    assert progress(tracker, [record(10, peer=0), record(10, peer=1)]).num_peers == 2


def test_parameters_are_averaged_within_an_epoch():
    async def keys(is_by_epoch: bool) -> list[str]:
        matchmaking = MemberMatchmaking.__new__(MemberMatchmaking)
        matchmaking.is_by_epoch, matchmaking.step_control = is_by_epoch, None
        matchmaking.lock_looking_for_group = asyncio.Lock()
        matchmaking.group_key_manager = GroupKeyManager(SimpleNamespace(peer_id=None), "run", "", None)
        found = []
        for epoch in 5, 6, 6:
            introduction = MSGPackSerializer.dumps(list(Introduction(epoch)))
            control = SimpleNamespace(data_for_gather=MSGPackSerializer.dumps([None, 0, introduction]))
            async with matchmaking.looking_for_group(control):
                found.append(matchmaking.group_key_manager.current_key)
        return found

    one, *two = asyncio.run(keys(is_by_epoch=True))
    assert one != two[0] == two[1]
    assert all(is_valid_group(key) for key in (one, *two))
    assert len(set(asyncio.run(keys(is_by_epoch=False)))) == 1
