"""A peer that is ahead of those whose parameters go on takes their epoch; with real peers in test_faults.py."""

import contextlib
import queue
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager, waiting

from dalle_lib.swarm.averaging.earned import SLACK
from dalle_lib.swarm.averaging.islands import Island
from dalle_lib.swarm.averaging.rounds import Brought, Group

pytestmark = pytest.mark.usefixtures("no_event_loop")


@pytest.mark.parametrize(("of_group", "goes_on_in"), [(3, 6), (4, 5), (5, 6)])
def test_who_was_an_epoch_ahead_of_its_group_takes_their_epoch_again(of_group, goes_on_in):
    peer, did = waiting(eta_s=300.0), []
    peer._load_averaged_gradients_into_optimizer_, peer.rounds = lambda: None, queue.SimpleQueue()
    peer.tracker.epochs.latest, peer.tracker.newcomers, peer._gradient_epoch = 100, 0, 5
    peer.tracker.pause_updates, peer.tracker.look = contextlib.nullcontext, lambda: did.append("look")
    peer.tracker.update_epoch, peer.tracker.report_local_progress = did.append, lambda *told: did.append(told)
    peer.state_averager._update_scheduler, peer.client_mode = lambda: None, True
    peer.grad_averager = SimpleNamespace(local_samples_accumulated=8)
    peer._outcome = lambda _: (Group({"own": 64.0, "b": 1.0, "c": 1.0}, of_group), None)
    control = Averager().schedule_step(timeout=30.0)
    control.weight = 64.0
    peer._average_gradients_and_load_into_optimizer(control)
    peer.state_averager.local_epoch = 6  # as hivemind counts the update
    is_ahead = goes_on_in == 5
    assert peer._go_back_to_their_epoch() is is_ahead
    assert peer.local_epoch == goes_on_in
    assert did == ([5, "look", (5, 8)] if is_ahead else []), "the gradients since then count"
    assert not peer._go_back_to_their_epoch(), "once"
    told = [peer.rounds.get() for _ in range(peer.rounds.qsize())][1:]
    assert [(each.epoch, each.samples, each.counts_in) for each in told] == ([(5, 64, 4)] if is_ahead else [])


def leaving(gives: bool, loads_epoch: int = 20, together: int | None = 12):
    """Return a peer at epoch 30 whose part of the run does not go on, what it has asked for, and what it did."""
    peer, asked, did = waiting(eta_s=300.0), {}, []
    peer.rounds, peer.dht, peer.is_counted = queue.SimpleQueue(), SimpleNamespace(peer_id="own"), True
    accumulated = peer.grad_averager = SimpleNamespace(local_samples_accumulated=8)
    accumulated.reset_accumulated_grads_ = lambda: setattr(accumulated, "local_samples_accumulated", 0)
    peer.tracker.pause_updates, peer.tracker.look = contextlib.nullcontext, lambda: did.append("look")
    peer.tracker.update_epoch, peer.tracker.global_epoch, peer.tracker.epochs.latest = did.append, 30, 40
    peer.tracker.epochs.ahead = 30
    island = Island(20, frozenset({"b", "c"}), frozenset({"b", "c"}), beside=frozenset({"own", "d"}))
    peer.tracker.parted = SimpleNamespace(others=island)
    peer.tracker.parted.together_until = lambda epoch, donor: together if donor == "donor" else 0
    peer.client_mode, peer.total_epochs, peer.next_chunk_timeout = True, 100, 5.0
    peer._brought = deque([Brought(11, 1.0, 2.0), Brought(12, 20.0, 50.0), Brought(29, 300.0, 400.0)])
    peer._lacks, peer._averaged_epoch, peer._should_check_synchronization_on_update = 28, 29, False

    def load(**given) -> str | None:
        asked.update(given)
        peer.state_averager.local_epoch = loads_epoch if gives else 30
        return "donor" if gives else None

    peer.state_averager.local_epoch, peer.state_averager.load_state_from_peers = 30, load
    peer.state_averager._update_scheduler = lambda: None
    return peer, asked, did


@pytest.mark.parametrize(("loads_epoch", "goes_on_in"), [(19, 20), (20, 20), (21, 21)])
def test_who_leaves_its_part_takes_the_others_state_of_an_earlier_epoch_and_says_what_is_lost(loads_epoch, goes_on_in):
    peer, asked, did = leaving(True, loads_epoch)
    assert peer._should_load_state_from_peers()
    peer.load_state_from_peers()
    assert asked == {"timeout": 5.0, "min_epoch": 19, "max_epoch": 20 + SLACK, "without": {"own", "d"}}
    assert (peer.local_epoch, did) == (goes_on_in, [goes_on_in, "look"])
    assert (peer.is_counted, peer.is_behind) == (True, loads_epoch < 20)
    assert peer._lacks < goes_on_in, "an update of the part that it has left is never made up for"
    assert peer._averaged_epoch <= goes_on_in
    told = peer.rounds.get_nowait()
    assert (told.epoch, told.samples, told.is_waiting) == (30, 8 + 20 + 300, False)
    assert "since epoch 12, and they go on in epoch" in told.reason
    assert "450 samples of its part are lost" in told.reason
    assert told.gave_way == (12, goes_on_in)
    assert not peer._should_load_state_from_peers(), "not again at once"


def test_who_goes_back_to_an_earlier_epoch_says_so_also_if_nothing_is_lost():
    peer, _, _ = leaving(True, together=30)
    peer.grad_averager.local_samples_accumulated = 0
    peer.load_state_from_peers()
    told = peer.rounds.get_nowait()
    assert (told.samples, told.gave_way) == (0, (30, 20))


def test_who_came_after_the_split_has_lost_all_that_it_brought():
    peer, _, _ = leaving(True, together=None)
    peer.load_state_from_peers()
    told = peer.rounds.get_nowait()
    assert told.samples == 8 + 1 + 20 + 300
    assert "since epoch 11," in told.reason


def test_who_leaves_a_part_of_the_same_epoch_has_lost_what_it_brought_since_they_averaged_parameters():
    peer, asked, did = leaving(True, loads_epoch=30)
    peer.tracker.parted.others, peer._averaged_with = None, {"b": 12, "c": 11, "own": 30}
    peer.replace_parameters(
        "they are others", Island(30, frozenset({"b", "c"}), frozenset({"b", "c"}), frozenset({"own"}))
    )
    assert asked == {"timeout": 5.0, "min_epoch": 29, "max_epoch": 30 + SLACK, "without": {"own"}}
    assert (peer.local_epoch, peer.is_behind, did) == (30, False, [30])
    told = peer.rounds.get_nowait()
    assert (told.samples, "since epoch 12, and they go on in epoch 30; 450 samples" in told.reason) == (328, True)
    assert told.gave_way == (12, 30)


@pytest.mark.parametrize("claimed", [20, 40])
def test_nobody_leaves_its_part_for_a_state_that_nobody_gives(claimed):
    peer, _, did = leaving(False)
    peer.tracker.parted.others = replace(peer.tracker.parted.others, epoch=claimed)
    peer.load_state_from_peers()
    assert (peer.local_epoch, peer.is_counted, peer.is_behind, did) == (30, True, False, [])
    assert peer.rounds.empty()
