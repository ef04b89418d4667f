"""A peer that is to leave waits for others for a while only, and what it then saves is whole and of the epoch it says.

Others may keep it waiting in a round of gradients, in which the thread that trains waits, and in a round of parameters,
which holds their lock. Where no process runs, an update waits for an event, and a round is a lock that somebody holds.
"""

import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import psutil
import pytest
import torch
from hivemind.averaging.control import StepControl
from hivemind.utils import MPFuture
from one_hot import OneHotSwarm, one_hot_card
from test_delayed_updates import Averager
from test_faults import TOLERANCE
from test_held_peers import rounds_with_others, told, trainer
from test_workarounds_optimizer import bare
from waiting import wait_until

from dalle_lib.checkpoint import read_header
from dalle_lib.run.files import MODEL, OPTIMIZER
from dalle_lib.swarm import local_swarm
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.rounds import Group
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.who_reduces import WhoReduces
from dalle_lib.swarm.peer.snapshot import Snapshot, restore_snapshot, take_snapshot

pytestmark = pytest.mark.usefixtures("no_event_loop")
HALF_AVERAGED = 99.0


@pytest.fixture
def averager():
    """One in epoch 3, whose peer is to leave as soon as `is_over` says so, with next to no time for others."""
    made = Averager()
    yield made
    made.is_over = lambda: False
    if made.lock_averaged_tensors.locked():
        made.lock_averaged_tensors.release()
    made.step_executor.shutdown()


@pytest.fixture
def grace(monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.averaging.leaving.GRACE_S", 0.3)


@pytest.fixture
def average():
    """Set when all gradients are averaged; the update waits for it."""
    event = threading.Event()
    yield event
    event.set()


def said(snapshot: Snapshot) -> tuple[int, float]:
    """Return the epoch of a snapshot and its first parameter, which is minus the number of updates since epoch 3."""
    return snapshot.epoch, float(snapshot.parameters[0][0])


def in_a_round(averager: Averager) -> None:
    """Begin a round of parameters that does not end: one of them has its average, the others have not."""
    averager.lock_averaged_tensors.acquire()
    averager.parameter.data.fill_(HALF_AVERAGED)


def a_round() -> StepControl:
    """Return the handle of a round that has begun."""
    trigger, cancel = MPFuture(), MPFuture()  # as hivemind does: a process cannot begin with a StepControl
    handle = StepControl(scheduled_time=0.0, deadline=1e9, allow_retries=True, weight=8.0, data_for_gather=b"")
    handle.attach(trigger, cancel)
    handle.allow_allreduce()
    return handle


def test_who_leaves_waits_no_more_for_an_update_that_others_keep_waiting(averager, average, grace):
    averager.begin(average.wait)
    averager.is_over = lambda: True
    with pytest.raises(Interrupted):
        averager.step(wait_for_delayed_updates=True)
    assert said(take_snapshot(averager, patience_s=averager.left_s)) == (3, 0.0)
    averager.drop_updates()
    averager.step(wait_for_delayed_updates=True)  # as hivemind does when it is shut down


def test_an_update_that_is_made_soon_after_a_peer_was_asked_to_leave_is_saved(averager, average):
    averager.begin(average.wait)
    averager.is_over = lambda: True
    threading.Timer(0.3, average.set).start()
    averager.step(wait_for_delayed_updates=True)
    assert said(take_snapshot(averager, patience_s=averager.left_s)) == (4, -1.0)


def test_who_stays_waits_for_the_others_as_long_as_the_card_says(averager, average, grace):
    averager.begin(average.wait)
    averager._allreduce_timeout = 1.0
    averager.step(wait_for_delayed_updates=True)
    assert averager.pending_updates
    average.set()
    averager.step(wait_for_delayed_updates=True)
    assert averager.given() == (4, -1.0)


def test_an_average_that_comes_too_late_for_who_leaves_begins_no_update(averager, average, grace):
    optimizer = bare(CollaborativeOptimizer, state_averager=averager, averaging_timeout=60.0)
    handle = a_round()
    averager.begin(lambda: optimizer._outcome(handle))
    averager.is_over = lambda: True
    (update,) = averager.pending_updates
    assert isinstance(update.exception(60.0), Interrupted)
    assert handle.cancelled()
    averager.step(wait_for_delayed_updates=True)
    with pytest.raises(Interrupted):  # the thread that trains has waited for it, and goes on
        averager.begin(average.wait)
    assert said(take_snapshot(averager, patience_s=averager.left_s)) == (3, 0.0)


@pytest.mark.parametrize("ending", ["average", "failure", "silence", "nobody", "leaving"])
def test_the_end_of_a_round_is_what_its_peer_makes_of_it(averager, monkeypatch, ending):
    optimizer = bare(CollaborativeOptimizer, state_averager=averager, averaging_timeout=60.0)
    optimizer.dht, whole = SimpleNamespace(peer_id="own"), Group({"own": 8.0, "other": 8.0}, epoch=0)
    optimizer.tracker = SimpleNamespace(who_reduces=WhoReduces(Trust()))
    handle = a_round()
    if ending == "average":
        averager.is_over = lambda: True  # it comes soon enough
        threading.Timer(0.3, handle.set_result, [whole]).start()
        assert optimizer._outcome(handle) == (whole, None)
        return
    if ending == "leaving":
        monkeypatch.setattr("dalle_lib.swarm.averaging.leaving.GRACE_S", 0.3)
        averager.is_over = lambda: True
        with pytest.raises(Interrupted):
            optimizer._outcome(handle)
        assert handle.cancelled(), "or it would look for a group while its peer saves"
        return
    if ending == "failure":
        threading.Timer(0.3, handle.set_exception, [ValueError("nobody came")]).start()
    else:
        optimizer.averaging_timeout = 0.3
    if ending == "nobody":
        for _look in range(2):
            optimizer.tracker.who_reduces.look({"own": True, "other": True}, counting=1)
    group, failure = optimizer._outcome(handle)
    assert group.counted == {"own": 8.0}
    causes = {"failure": "nobody came", "silence": "no round ended in 0.3 s", "nobody": "nobody can average for"}
    assert causes[ending] in failure


def test_a_round_in_which_who_leaves_does_not_count_keeps_it_no_longer_either(averager, grace):
    optimizer = bare(CollaborativeOptimizer, state_averager=averager, averaging_timeout=60.0)
    averager.is_over, handle = (lambda: True), a_round()
    optimizer._tag_along_with_zero_weight(handle)
    with pytest.raises(CancelledError):
        handle.result(0.0)


def test_a_snapshot_beside_a_round_of_parameters_has_those_from_before_it(averager):
    in_a_round(averager)
    assert said(take_snapshot(averager, patience_s=0.1)) == (3, 0.0)
    threading.Timer(0.3, averager.lock_averaged_tensors.release).start()
    assert said(take_snapshot(averager, patience_s=60.0)) == (3, HALF_AVERAGED), "the round is over: it is the average"


def test_an_update_behind_a_round_of_parameters_is_not_made_once_the_epoch_before_is_saved(averager):
    in_a_round(averager)
    averager.begin(lambda: None)
    (update,) = averager.pending_updates
    assert said(take_snapshot(averager, patience_s=0.1)) == (3, 0.0)
    averager.lock_averaged_tensors.release()
    assert isinstance(update.exception(60.0), Interrupted), "its statistics would change while they are saved"
    assert (averager.epoch_of_parameters, float(averager.parameter.detach()[0])) == (3, HALF_AVERAGED)


def test_an_update_that_is_being_made_is_saved_though_time_is_up(averager):
    begun, goes_on = threading.Event(), threading.Event()

    def make_slowly(*_args) -> None:
        begun.set()
        goes_on.wait()

    averager.optimizer.register_step_pre_hook(make_slowly)
    averager.begin(lambda: None)
    begun.wait()
    threading.Timer(0.5, goes_on.set).start()
    assert said(take_snapshot(averager, patience_s=0.1)) == (4, -1.0)


def test_who_leaves_begins_no_update_that_would_wait_for_a_round_of_parameters(averager, grace):
    in_a_round(averager)
    averager.is_over = lambda: True
    with pytest.raises(Interrupted):
        averager.step(increment_epoch=True, optimizer_step=True, delay_optimizer_step=False)
    assert said(take_snapshot(averager, patience_s=averager.left_s)) == (3, 0.0)


def test_who_leaves_waits_no_more_for_a_round_of_parameters(averager, grace):
    rounds = ParameterRounds(averager, every=5, timeout_s=60.0)
    rounds.pending = a_round()
    averager.is_over = lambda: True
    with pytest.raises(Interrupted):
        rounds.wait(search_s=60.0)


def optimizer_of(averager: Averager) -> CollaborativeOptimizer:
    """Return what of an optimizer goes back to a snapshot."""
    grads = SimpleNamespace(reset_accumulated_grads_=lambda: None)
    tracker = SimpleNamespace(report_local_progress=lambda *_, **__: None)
    return bare(
        CollaborativeOptimizer,
        state_averager=averager, opt=averager.optimizer, grad_averager=grads, tracker=tracker, client_mode=True,
    )  # fmt: skip


@pytest.mark.parametrize("is_waiting", ["for a round of parameters", "for an update"])
def test_who_leaves_goes_back_to_its_last_good_copy_though_others_keep_it_waiting(averager, average, is_waiting):
    good = take_snapshot(averager)
    if is_waiting == "for an update":
        averager.begin(average.wait)
    else:
        in_a_round(averager)
    averager.main_parameters[0].data.fill_(torch.nan)
    restore_snapshot(optimizer_of(averager), good, patience_s=0.1)
    assert averager.main_parameters[0].eq(0.0).all(), "the model is what is saved"
    assert averager.local_epoch == 3


def test_who_is_to_leave_while_it_goes_back_waits_for_no_round_of_parameters(averager, grace):
    good = take_snapshot(averager)
    in_a_round(averager)
    averager.is_over = lambda: True
    with pytest.raises(Interrupted):
        restore_snapshot(optimizer_of(averager), good)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("delayed", "fault"),
    [
        ("step", "freezes_in"),
        pytest.param(False, "freezes_in", marks=pytest.mark.long),
        pytest.param("averaging", "freezes_in", marks=pytest.mark.long),
        pytest.param("step", "freezes_after", marks=pytest.mark.long),
    ],
)
def test_who_leaves_a_group_that_hangs_saves_all_updates_that_it_has_made(mini, swarm_folder, delayed, fault):
    card = one_hot_card(mini, state_every=3, delayed=delayed, timeout_s=300.0)
    with OneHotSwarm(card, swarm_folder) as swarm:
        frozen = {fault: 2, "sends_before": 2}  # of the four parts of each tensor
        peers = [swarm.add(size=2_000_000, **faults) for faults in ({}, frozen)]
        swarm.go()
        swarm.wait(lambda: psutil.Process(peers[1].process.pid).status() == psutil.STATUS_STOPPED)
        peers[0].stop()  # its supervisor would give it as long
        (saved,) = peers[0].events("saved")
        assert peers[0].events("left")
        assert saved["epoch"] == (2 if fault == "freezes_in" else 3)
        values = torch.tensor(saved["values"])
        assert values.sum(1).tolist() == pytest.approx([saved["epoch"]] * 3, abs=3 * TOLERANCE)
        assert values[:, :2].min() > 0.1, "the gradients of one are in none"


@pytest.mark.chaos
@pytest.mark.long
def test_a_trainer_asked_to_leave_while_another_one_hangs_has_saved_before_its_time_is_up(mini, swarm_folder):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "total_epochs": 1000, "warmup_epochs": 1},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64, "timeout_s": 300.0, "delayed": "step"},
    )
    with local_swarm(card, swarm_folder, [trainer("ada"), trainer("bob")]) as swarm:
        ada, bob = swarm.peers.values()
        wait_until(lambda: len(rounds_with_others(ada)) >= 2, 300.0)
        supervisor = psutil.Process(bob.supervisor_id)
        family = [supervisor, *supervisor.children(recursive=True)]
        try:
            for process in family:
                os.kill(process.pid, signal.SIGSTOP)
            time.sleep(20)  # several epochs: it waits for the round that ends this one
            ada.stop()
        finally:
            for process in family:
                os.kill(process.pid, signal.SIGCONT)
        assert told(ada, "left"), "it was killed"
        last = told(ada, "epoch")[-1]["epoch"]
        assert [read_header(ada.folder / file)[1]["epoch"] for file in (MODEL, OPTIMIZER)] == [str(last)] * 2
        again = swarm.add(trainer("ada"))
        wait_until(lambda: told(again, "joined"), 300.0)
        assert told(again, "joined")[0]["epoch"] >= last, "what it had saved cannot be used"
