"""What leaves a peer is of the epoch that it says: before and after a delayed update, and in rounds that come late."""

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.utils import MPFuture
from torch.optim.lr_scheduler import LambdaLR

from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.peer.snapshot import take_snapshot


class Averager(RunStateAverager):
    """What of the averager makes updates, without a process."""

    local_epoch = 3
    offload_optimizer = custom_gradients = reuse_tensors = True
    delta_rule_averaging = False
    extra_tensors = ()
    scheduler = None
    status_loglevel = 0
    _allreduce_timeout = 60.0

    def __init__(self) -> None:
        self.parameter, self.main_parameters = torch.nn.Parameter(torch.zeros(4)), (torch.nn.Parameter(torch.zeros(4)),)
        self.parameter.grad, self.parameter_names = torch.ones(4), ("weights",)
        self.optimizer = torch.optim.SGD([self.parameter], lr=1.0)
        self._follow_updates()
        self.lock_averaged_tensors, self.lock_optimizer = threading.Lock(), threading.Lock()
        self.finished_optimizer_step, self.finished_averaging_round = threading.Event(), threading.Event()
        self.pending_updates, self.step_executor = set(), ThreadPoolExecutor(1)
        self._changes = multiprocessing.Value("q", 0)

    def __del__(self) -> None:
        """Nothing has to end."""

    def get_group_bits(self) -> str:
        return ""

    def begin(self, wait_for_average) -> None:
        """Begin an update, as `CollaborativeOptimizer` does in a run with delayed averaging."""
        delayed = {"delay_optimizer_step": True, "delay_averaging": True}
        self.step(increment_epoch=True, optimizer_step=True, wait_for_trigger=wait_for_average, **delayed)

    def given(self) -> tuple[int, float]:
        """Return the epoch that a newcomer is told, and the first parameter that it gets."""
        metadata, (tensor, *_), _ = self.get_current_state()
        return metadata["epoch"], float(tensor[0])


@pytest.fixture
def average():
    """Set when all gradients are averaged; the update waits for it."""
    event = threading.Event()
    yield event
    event.set()


def test_a_newcomer_gets_the_epoch_of_the_parameters_while_the_update_waits(average):
    averager = Averager()
    assert averager.given() == (3, 0.0)
    averager.begin(average.wait)
    assert (averager.local_epoch, averager.given()) == (4, (3, 0.0))
    average.set()
    averager.step(wait_for_delayed_updates=True)
    assert (averager.local_epoch, averager.given()) == (4, (4, -1.0))


def test_a_newcomer_gets_the_epoch_of_the_parameters_while_two_updates_wait(average):
    averager, other = Averager(), threading.Event()
    averager.begin(average.wait)
    averager.begin(other.wait)
    assert (averager.local_epoch, averager.given()) == (5, (3, 0.0))
    average.set()
    averager.finished_optimizer_step.wait()
    assert averager.given() == (4, -1.0)
    other.set()
    averager.step(wait_for_delayed_updates=True)
    assert (averager.given(), averager.lacks_update) == ((5, -2.0), False)


def test_an_update_that_was_not_made_is_waited_for_no_more(average):
    averager = Averager()
    averager.begin(lambda: error())
    averager.step(wait_for_delayed_updates=True)
    assert averager.lacks_update
    assert averager.given() == (4, 0.0)
    averager.begin(average.wait)
    assert averager.given() == (4, 0.0)


def test_an_update_that_is_called_off_while_it_waits_for_another_is_known_to_be_lost(average):
    averager = Averager()
    averager.begin(average.wait)
    averager.begin(average.wait)
    averager._allreduce_timeout = 0.1
    averager.step(wait_for_delayed_updates=True)
    assert averager.lacks_update
    average.set()
    averager.finished_optimizer_step.wait()
    assert averager.given() == (5, -1.0)


def error() -> None:
    raise MemoryError


def test_the_learning_rate_is_that_of_an_epoch_to_which_a_peer_goes_back():
    averager = Averager()
    averager.scheduler = LambdaLR(averager.optimizer, lambda epoch: 1 / (1 + epoch))
    for epoch in 3, 5, 4, 4, 2, 0, 1, 6:
        averager.local_epoch = epoch
        averager.optimizer.step()
        averager._update_scheduler()
        assert averager.scheduler.get_last_lr() == [1 / (1 + epoch)]


def test_a_peer_that_leaves_saves_the_epoch_before_if_the_others_keep_its_update_waiting(average):
    averager = Averager()
    averager.begin(average.wait)
    snapshot = take_snapshot(averager, patience_s=0.1)
    assert (snapshot.epoch, float(snapshot.parameters[0][0])) == (3, 0.0)
    threading.Timer(0.2, average.set).start()
    snapshot = take_snapshot(averager, patience_s=60.0)
    assert (snapshot.epoch, float(snapshot.parameters[0][0])) == (4, -1.0)


def begun_round() -> StepControl:
    """Return a handle as hivemind makes it in an event loop: a process cannot begin with one."""
    trigger, cancel = MPFuture(), MPFuture()
    handle = StepControl(scheduled_time=0.0, deadline=1e9, allow_retries=True, weight=1.0, data_for_gather=b"")
    handle.attach(trigger, cancel)
    handle.allow_allreduce()
    return handle


@pytest.mark.parametrize("is_late", [False, True])
def test_parameters_that_an_update_has_changed_are_in_no_round_that_began_before_it(monkeypatch, is_late):
    averager, averaged, called_off = Averager(), [], []
    group = SimpleNamespace(group_id=b"group")

    async def average(_averager, tensors, group, group_id=None, **_weights):
        averaged.append(float(tensors[0].detach()[0]))

    async def find_group_and_average(averager, step):
        if is_late:
            averager.step(increment_epoch=True, optimizer_step=True, delay_optimizer_step=False)
        averager._running_groups = {b"group": asyncio.Future()}
        try:
            await averager._run_allreduce_inplace_([averager.parameter], group)
        finally:
            called_off.append(averager._running_groups[b"group"].done())

    async def take_part() -> bool:
        handle = begun_round()
        if is_late:
            with pytest.raises(AllreduceException, match="too late"):
                await averager._step(step=handle)
        else:
            await averager._step(step=handle)
        return handle.allow_retries

    monkeypatch.setattr(RunAverager, "_run_allreduce_inplace_", average)
    monkeypatch.setattr(RunAverager, "_step", find_group_and_average)
    averager.step(increment_epoch=True, optimizer_step=True, delay_optimizer_step=False)
    assert asyncio.run(take_part()) is not is_late
    assert averaged == ([] if is_late else [-1.0])
    assert called_off == [is_late], "else a groupmate that sends parts would wait for this peer"


def test_a_round_that_was_given_up_is_late_though_the_next_one_has_begun(monkeypatch):
    averager, averaged = Averager(), []
    averager._running_groups = {}

    async def average(_averager, _tensors, group, group_id=None, **_weights):
        averaged.append(group.group_id)

    async def find_group_and_average(averager, step):
        if step is rounds[0]:
            averager.step(increment_epoch=True, optimizer_step=True, delay_optimizer_step=False)
            await asyncio.create_task(averager._step(step=rounds[1]))
        name = bytes([rounds.index(step)])
        averager._running_groups[name] = asyncio.Future()
        await averager._run_allreduce_inplace_([averager.parameter], SimpleNamespace(group_id=name))

    async def take_part() -> None:
        rounds.extend((begun_round(), begun_round()))
        with pytest.raises(AllreduceException, match="too late"):
            await averager._step(step=rounds[0])
        assert [handle.allow_retries for handle in rounds] == [False, True]

    rounds = []
    monkeypatch.setattr(RunAverager, "_run_allreduce_inplace_", average)
    monkeypatch.setattr(RunAverager, "_step", find_group_and_average)
    asyncio.run(take_part())
    assert averaged == [bytes([1])]
