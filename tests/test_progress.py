"""What a peer believes of the run's progress, and how it finds the others again when it has lost them all."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from dalle_lib.swarm.averaging.progress import MAX_CALLED, PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust

TABLES = """
import sys, time, hivemind
from hivemind.utils.crypto import RSAPrivateKey
from dalle_lib.swarm.averaging.progress import MAX_CALLED, PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust

async def neighbours(dht, node):
    return [id for bucket in node.protocol.routing_table.buckets for id in bucket.nodes_to_peer_id]

async def known_peers(dht, node):
    return [peer for bucket in node.protocol.routing_table.buckets for peer in bucket.nodes_to_peer_id.values()]

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
"""
"""The functions of the two scripts below, on their `tables` and `trackers`."""
REUNION = (
    TABLES
    + """
local = ["/ip4/127.0.0.1/tcp/0"]
first = hivemind.DHT(start=True, host_maddrs=local)
second = hivemind.DHT(start=True, host_maddrs=local, initial_peers=[str(a) for a in first.get_visible_maddrs()])
tables, trackers = [first, second], []
try:
    wait(lambda: not any(map(is_alone, tables)))
    if sys.argv[1] == "one it had":
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
)
RETURN = (
    TABLES
    + """
from dalle_lib.swarm.averaging import progress
progress.FIRST_PEERS_EVERY_S = float(sys.argv[2])
identity = {"start": True, "identity_path": sys.argv[1]}
first = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], **identity)
(address,), id = map(str, first.get_visible_maddrs()), first.peer_id
local = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "initial_peers": [address]}
tables, trackers = [hivemind.DHT(start=True, **local) for _ in range(2)], []
try:
    track()
    wait(have_met)
    first.shutdown()
    wait(lambda: not any(id in dht.run_coroutine(known_peers) for dht in tables))
    first = hivemind.DHT(host_maddrs=[address.split("/p2p/")[0]], **identity)
    wait(lambda: not is_alone(first))
finally:
    for tracker in trackers:
        tracker.shutdown()
    for dht in [first, *tables]:
        dht.shutdown()
"""
)


@pytest.mark.chaos
def test_a_first_peer_that_comes_back_is_called_by_those_who_go_on(tmp_path):
    command = [sys.executable, "-c", RETURN, str(tmp_path / "identity.key"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("whom", [pytest.param("the first of the run", marks=pytest.mark.chaos), "one it had"])
def test_a_peer_that_has_lost_all_others_calls_them(whom):
    done = subprocess.run([sys.executable, "-c", REUNION, whom], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]


def record(epoch: int, peer: int) -> LocalTrainingProgress:
    """Return the record that a peer with this one-byte id publishes."""
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


def test_a_newcomer_counts_itself_before_its_record_appears(tracker):
    assert progress(tracker, [record(10, peer=1)]).num_peers == 2
    assert progress(tracker, [record(10, peer=0), record(10, peer=1)]).num_peers == 2


def test_an_id_that_is_no_peers_is_refused_before_it_is_written_in_base_58(tracker):
    false = record(10, peer=1).copy(update={"peer_id": b"x" * 10**6})
    assert progress(tracker, [false]).num_peers == 1
    assert any("1,000,000 bytes" in why for why in tracker.doubted.values())


def test_few_peers_are_called_at_once(tracker, monkeypatch):
    called = []
    monkeypatch.setattr(
        tracker.dht, "run_coroutine", lambda call, **_: called.append(call.keywords["peers"]), raising=False
    )
    tracker._stay_known([bytes([1, number]) for number in range(200)])
    tracker._stay_known([])
    assert [len(set(peers)) for peers in called] == [MAX_CALLED]
