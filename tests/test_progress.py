"""What a peer believes of the run's progress, and how it finds the others again when it has lost them all."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from auth_peers import identity
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging.earned import EarnedEpochs
from dalle_lib.swarm.averaging.progress import MAX_CALLED, PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust, owner_key

TABLES = """
import sys, time, hivemind
from dalle_lib.auth import Identity
from dalle_lib.swarm.averaging.progress import MAX_CALLED, PlausibleProgress
from dalle_lib.swarm.averaging.trust import Trust

local = ["/ip4/127.0.0.1/tcp/0"]
files = [f"{sys.argv[1]}/{name}" for name in ("ada", "bob")]
identities = [Identity.load_or_create(file) for file in files]

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
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)

def track():
    limits = {"target_batch_size": 100, "total_epochs": 10, "shortest_epoch_s": 1.0, "metadata_expiration": 4.0}
    refresh = {"default_refresh_period": 0.5, "max_refresh_period": 0.5}
    for dht, identity in zip(tables, identities):
        key = identity.private_key
        tracker = PlausibleProgress(dht, "run", trust=Trust(), private_key=key, start=True, **limits, **refresh)
        tracker.is_counted = True
        tracker.report_local_progress(0, 1)
        trackers.append(tracker)

def have_met():
    return all(tracker.global_progress.num_peers == 2 for tracker in trackers)
"""
"""The functions of the two scripts below, on their `tables` and `trackers`."""
REUNION = (
    TABLES
    + """
first = hivemind.DHT(start=True, host_maddrs=local, identity_path=files[0])
address = list(map(str, first.get_visible_maddrs()))
second = hivemind.DHT(start=True, host_maddrs=local, identity_path=files[1], initial_peers=address)
tables, trackers = [first, second], []
try:
    wait(lambda: not any(map(is_alone, tables)))
    if sys.argv[2] == "one it had":
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
from pathlib import Path
from dalle_lib.swarm.peer import first_peers
first_peers.FIRST_PEERS_EVERY_S = 1.0
own = f"{sys.argv[1]}/first"
first = hivemind.DHT(start=True, host_maddrs=local, identity_path=own)
(address,), id = map(str, first.get_visible_maddrs()), first.peer_id
start = {"start": False, "host_maddrs": local, "initial_peers": [address]}
tables, trackers = [hivemind.DHT(identity_path=file, **start) for file in files], []
try:
    for number, dht in enumerate(tables):
        folder = Path(sys.argv[1], str(number))
        folder.mkdir()
        first_peers.start(dht, [address], folder)
    track()
    wait(have_met)
    first.shutdown()
    wait(lambda: not any(id in dht.run_coroutine(known_peers) for dht in tables))
    first = hivemind.DHT(start=True, host_maddrs=[address.split("/p2p/")[0]], identity_path=own)
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
    done = subprocess.run([sys.executable, "-c", RETURN, tmp_path], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("whom", [pytest.param("the first of the run", marks=pytest.mark.chaos), "one it had"])
def test_a_peer_that_has_lost_all_others_calls_them(whom, tmp_path):
    done = subprocess.run([sys.executable, "-c", REUNION, tmp_path, whom], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]


PEERS = [identity(f"peer {number}") for number in range(7)]
NOW = get_dht_time()


def record(epoch: int, peer: int, **claims) -> LocalTrainingProgress:
    """Return the record that the peer of this number publishes."""
    told = {"samples_accumulated": 1, "samples_per_second": 1.0, "time": NOW, "client_mode": False} | claims
    return LocalTrainingProgress(peer_id=PeerID.from_base58(PEERS[peer].peer_id).to_bytes(), epoch=epoch, **told)


@pytest.fixture
def tracker(monkeypatch):
    """The tracker of peer 0 in epoch 10 of a run, without a hash table; its clock stands still."""
    monkeypatch.setattr("dalle_lib.swarm.averaging.progress.get_dht_time", lambda: NOW)
    table = SimpleNamespace(
        peer_id=PeerID.from_base58(PEERS[0].peer_id),
        client_mode=False,
        initial_peers=None,
        add_validators=lambda _: None,
        get=lambda *_, **__: None,
    )
    run = {"target_batch_size": 100, "total_epochs": 1000, "shortest_epoch_s": 1.0}
    found = PlausibleProgress(table, "run", trust=Trust(), start=False, **run)
    found.local_progress = record(10, peer=0)
    found.epochs.enter(10, 10, NOW - 60)
    return found


def progress(
    tracker: PlausibleProgress, records: list[LocalTrainingProgress], writer: Identity | None = None
) -> GlobalTrainingProgress:
    """Return what a tracker makes of these records, each written by the peer that it is about, or all by `writer`."""
    writers = {PeerID.from_base58(peer.peer_id).to_bytes(): writer or peer for peer in PEERS}
    return tracker._parse_swarm_progress_data(
        {owner_key(writers[told.peer_id].public_key): ValueWithExpiration(told.dict(), NOW + 60) for told in records}
    )


def test_a_batch_in_which_a_peer_slept_is_neither_slow_nor_infinitely_fast(tracker, monkeypatch):
    now, speed = 100.0, tracker.performance_ema
    monkeypatch.setattr("time.perf_counter", lambda: now)
    speed.reset_timer()
    now += 4.0 + 60.0
    tracker.leave_out(60.0, computed_s=3.0)
    assert speed.update(8) == pytest.approx(2.0)
    speed.reset_timer()  # as a peer does that slept while it was paused, and goes on
    now += 4.0
    tracker.leave_out(60.0, computed_s=4.0)
    assert speed.update(8) == pytest.approx(2.0)


def test_survivors_believe_each_other_when_most_peers_have_died(tracker):
    dead = [record(7, peer) for peer in (3, 4, 5)]
    found = progress(tracker, [record(10, peer=0), record(11, peer=1), record(11, peer=2), *dead])
    assert (found.epoch, found.num_peers) == (11, 6)


def test_one_record_ends_no_run_and_its_writer_is_named(tracker):
    liar = PEERS[1].peer_id
    for epoch in 1000, 10**9:
        found = progress(tracker, [record(epoch, peer=1), record(10, peer=2)])
        assert (found.epoch, tracker.epochs.ahead) == (10, 10)
        assert tracker.doubted.keys() == {liar}
        assert f"it claims epoch {epoch}" in tracker.doubted[liar]
    assert progress(tracker, [record(1000, peer=1)]).epoch == 10


def test_one_user_has_one_vote(tracker, monkeypatch):
    names = {peer.peer_id: "eve" for peer in PEERS[1:5]}
    monkeypatch.setattr(Trust, "user_of", lambda self, peer: names.get(peer, peer))
    many, others = [record(1000, peer) for peer in (1, 2, 3, 4)], [record(10, peer) for peer in (5, 6)]
    assert progress(tracker, [*many, *others]).epoch == 10


def test_newcomers_have_no_vote_on_the_epoch_however_many_they_are(tracker):
    tracker.local_progress = record(2, peer=0)
    tracker.epochs = EarnedEpochs(1000, 1.0)
    tracker.is_counted = False
    tracker.report_local_progress(2, 5)
    told = tracker.local_progress.dict()
    assert (told["epoch"], told["samples_accumulated"], told["samples_per_second"]) == (2, 0, 0.0)
    newcomers = [record(2, peer, samples_accumulated=0, samples_per_second=0.0) for peer in (1, 2, 3, 4)]
    found = progress(tracker, [*newcomers, record(8, peer=5), record(8, peer=6)])
    assert (found.epoch, found.num_peers, tracker.newcomers, tracker.is_alone) == (8, 3, 4, False)
    assert (progress(tracker, newcomers).num_peers, tracker.newcomers) == (1, 4), "nobody is there to average with"


def test_a_run_whose_peers_that_count_are_all_clients_is_known_as_one(tracker):
    new = record(10, peer=3, samples_accumulated=0, samples_per_second=0.0)
    for clients, expected in ((), False), ((True, True), True), ((True, False), False):
        counting = [record(10, peer, client_mode=is_client) for peer, is_client in enumerate(clients, 1)]
        progress(tracker, [*counting, new])
        assert tracker.are_clients == expected


def test_who_misses_the_others_in_one_look_is_not_alone_yet(tracker, monkeypatch):
    assert tracker.is_alone
    tracker.local_progress, now = record(8, peer=0), 1000.0
    monkeypatch.setattr("dalle_lib.swarm.averaging.progress.time.monotonic", lambda: now)
    progress(tracker, [record(8, peer=5)])
    now += 300.0
    assert not tracker.is_alone, "it has not looked while it loaded a state"
    progress(tracker, [record(8, peer=5)])
    now += 50.0
    progress(tracker, [record(8, peer=1, samples_accumulated=0, samples_per_second=0.0)])
    assert not tracker.is_alone
    now += 11.0
    assert tracker.is_alone
    tracker.local_progress = record(9, peer=0)
    progress(tracker, [record(7, peer=5)])
    assert tracker.is_alone, "it is lost in an epoch long past"
    progress(tracker, [record(8, peer=5)])
    assert not tracker.is_alone


def test_a_record_with_a_negative_epoch_is_not_read(tracker):
    false = record(10, peer=1).copy(update={"epoch": -1})
    assert progress(tracker, [false, record(10, peer=2)]).num_peers == 2
    assert any("its record cannot be read" in why for why in tracker.doubted.values())


def test_a_false_speed_and_date_end_no_epoch(tracker):
    tracker.trust = Trust(max_share_per_user=0.34)
    tracker._samples.max_share = 0.34
    tracker.performance_ema.samples_per_second = 1.0
    old = {"samples_accumulated": 0, "time": NOW - 60}
    honest = [record(10, peer, **old, samples_per_second=0.1) for peer in (2, 3)]
    before = progress(tracker, honest).eta_next_epoch - NOW
    liar = record(10, peer=1, **old, samples_per_second=1e12)
    found = progress(tracker, [*honest, liar])
    assert before == pytest.approx(99 / 1.2, rel=0.02)
    assert found.eta_next_epoch - NOW == pytest.approx(1 + 64 / 1.2, rel=0.1), "more than a share counts"
    assert found.samples_accumulated < 5


def test_an_epoch_ends_though_the_other_of_two_has_ended_it_already(tracker):
    tracker.performance_ema.samples_per_second = 1e-3
    progress(tracker, [record(10, peer=1, samples_accumulated=98, samples_per_second=1.0)])
    found = progress(tracker, [record(11, peer=1, samples_accumulated=0)])
    assert found.epoch == 10
    assert found.eta_next_epoch - NOW < 3


def test_a_newcomer_counts_itself_before_its_record_appears(tracker):
    assert progress(tracker, [record(10, peer=1)]).num_peers == 2
    assert progress(tracker, [record(10, peer=0), record(10, peer=1)]).num_peers == 2


def test_who_writes_in_anothers_name_is_named_and_not_counted(tracker):
    assert progress(tracker, [record(10, peer=1)], writer=PEERS[2]).num_peers == 1
    assert tracker.doubted == {PEERS[2].peer_id: "it wrote a record in another peer's name"}


def test_few_peers_are_called_at_once(tracker, monkeypatch):
    called = []
    monkeypatch.setattr(
        tracker.dht, "run_coroutine", lambda call, **_: called.append(call.keywords["peers"]), raising=False
    )
    tracker._stay_known([bytes([1, number]) for number in range(200)])
    assert not called
    tracker._stay_known([])
    assert [len(set(peers)) for peers in called] == [MAX_CALLED]


def test_a_fast_peer_that_goes_a_little_beyond_the_epoch_is_not_named(tracker):
    progress(tracker, [record(10, 1, samples_accumulated=199), record(10, 2, samples_accumulated=201)])
    assert tracker.doubted == {PEERS[2].peer_id: "it claims 201 samples of an epoch"}
