"""A peer that is ahead of those whose parameters go on takes their epoch; with real peers in test_faults.py."""

import contextlib
import queue
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager, waiting

from dalle_lib.swarm.averaging.rounds import Group

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
