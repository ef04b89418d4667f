"""The averager of parameters, which gives this peer's state to newcomers and takes over that of a donor."""

import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.optim.state_averager import TrainingStateAverager, dump_optimizer_state, load_optimizer_state
from hivemind.utils import MPFuture

from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.donors import ExpectedState, Taking, download
from dalle_lib.swarm.averaging.trust import Trust

LOOK_EVERY_S = 0.2
"""Seconds between looks at whether a download is over."""
MAX_NEWS = 100
"""Words of a download that wait to be told."""


class RunStateAverager(RunAverager, TrainingStateAverager):
    """Averages parameters and gives them to newcomers, as hivemind's averager of the training state does.

    Its rounds, and `_download_state`, run in a process of their own, all other methods here in the trainer's.
    """

    wire_type = TrainingStateAverager
    tell_taking: Callable[[Taking], None] = staticmethod(lambda _: None)
    """Is told, every few seconds, how it stands with a state that `load_state_from_peers` takes over."""
    is_over: Callable[[], bool] = staticmethod(lambda: False)
    """Says that this peer is to leave, and takes over no state any more, which may last for many minutes."""
    lacks_update = False
    """Whether an update that is over was not made whole; the update thread sets it, the owner clears it."""
    _is_due = False
    """Whether an update that `local_epoch` counts is still to be made; changed by the owner and the update thread."""
    _round: StepControl
    """The round that is under way, in the averager's process."""
    _changes_before = 0
    """Changes of the parameters when it began, there."""
    is_by_epoch = True  # parameters of another epoch would undo an update, or apply it twice

    def __init__(self, *args, trust: Trust, **kwargs) -> None:
        self.gave_no_state: dict[str, float] = {}
        """When users and peers were asked for a state that gave none, in seconds of `time.monotonic`."""
        self._news = multiprocessing.Queue(MAX_NEWS)
        self._changes = multiprocessing.Value("q", 0)
        """How often the parameters were changed by anything but averaging, as both processes see it."""
        # Parameters that lack no update are worth the same, whoever has them: a claim beyond 1 counts 1. They travel to
        # reducers in as many bits as averages.
        trust = replace(trust, max_weight=1.0, most_decide=True, answer_size=1)
        super().__init__(*args, trust=trust, **kwargs)
        self.optimizer.register_step_post_hook(self._was_made)

    def step(self, *args, optimizer_step: bool = False, **options):
        """Do what hivemind's averager does, and know whether the update that it begins is made."""
        if optimizer_step:
            self._is_due = True  # before it counts as an epoch
        return super().step(*args, optimizer_step=optimizer_step, **options)

    def _do(self, wait_for_trigger, optimizer_step: bool, *args, **kwargs) -> None:
        # hivemind logs what ends an update early, as a lack of memory does, and goes on as if it had been made.
        self._is_due = optimizer_step
        super()._do(wait_for_trigger, optimizer_step, *args, **kwargs)
        self.lacks_update |= self._is_due
        self._is_due = False

    def _was_made(self, *_args) -> None:
        self._is_due = False
        self.changed()

    def changed(self) -> None:
        """Note that parameters are now others than averages; to be called with their lock."""
        with self._changes.get_lock():
            self._changes.value += 1

    def _update_scheduler(self) -> None:
        # hivemind's goes forward alone: the learning rate would stay that of an epoch that this peer has left again.
        if self.scheduler and self.scheduler._step_count > self.local_epoch + 1:
            self.scheduler._step_count, self.scheduler.last_epoch = self.local_epoch, self.local_epoch - 1
        super()._update_scheduler()

    @property
    def epoch_of_parameters(self) -> int:
        """The number of updates in the parameters: one less than `local_epoch` while a delayed one is to be made."""
        return self.local_epoch - self._is_due

    def of_trainer(self) -> list[torch.Tensor]:
        """Return the model's parameters, the optimizer's statistics, and all their gradients."""
        own = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        _layout, statistics = dump_optimizer_state(self.optimizer)
        gradients = [p.grad for p in (*self.main_parameters, *own) if p.grad is not None]
        return [*self.main_parameters, *statistics, *gradients]

    async def _step(self, *, step: StepControl, **kwargs) -> None:
        self._round, self._changes_before = step, self._changes.value
        await super()._step(step=step, **kwargs)

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        # A group may have been found while the trainer's process gave the round up, or went on without it, as on a busy
        # machine: the others would get an update that is not of their epoch, and this peer would lose one.
        if self._changes.value != self._changes_before:
            self._round._allow_retries = False
            late = AllreduceException("it came too late: this peer's parameters are of a later epoch now")
            ended = self._running_groups[group_info.group_id]
            ended.set_exception(late)  # who sends parts would wait for it
            ended.exception()  # asyncio would log that nobody has asked for it
            raise late
        await super()._run_allreduce_inplace_(tensors, group_info, group_id, **kwargs)

    def get_current_state(self):
        """Return metadata, copies of the tensors, and how to compress them, for a peer that asked for the state.

        hivemind 1.1.12 sends the tensors themselves, while the next step goes on changing them, and gives them as those
        of the next epoch while that is still to be made.
        """
        with self.lock_optimizer:
            metadata, tensors, infos = super().get_current_state()
            metadata["epoch"] = self.epoch_of_parameters
            with self.lock_averaged_tensors:
                return metadata, [tensor.clone() for tensor in tensors], infos

    def load_state_from_peers(self, timeout: float, max_epoch: int, without: Collection[str] = ()) -> str | None:
        """Take over parameters, statistics and epoch of a donor with a fitting state, and return its id; None if none.

        hivemind would also load the optimizer's settings. Here they come from the run card, whatever a donor says. A
        donor that is silent for `timeout` seconds is given up; one beyond `max_epoch`, or of a user in `without`, is
        not asked. None as soon as `is_over` says so, too.
        """
        _metadata, own_tensors, _infos = super().get_current_state()
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in own_tensors)
        expected, future = ExpectedState(shapes, self.local_epoch, max_epoch), MPFuture()
        # Calls `_download_state` in the averager's process.
        asked = {"expected": expected, "timeout": timeout, "without": without, "future": future}
        self._outer_pipe.send(("_download_state", [], asked))
        while not future.done():
            if self.is_over() or not self.is_alive():
                return None  # nobody wants it, or would ever answer
            with contextlib.suppress(queue.Empty):
                self.tell_taking(self._news.get(timeout=LOOK_EVERY_S))
        if (loaded := future.result()) is None:
            return None
        donor, metadata, tensors = loaded
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        own_layout, _ = dump_optimizer_state(self.optimizer)
        with torch.no_grad(), self.lock_averaged_tensors:
            load_optimizer_state(self.optimizer, own_layout, tensors[len(parameters) :])
            torch._foreach_copy_(parameters, tensors[: len(parameters)])
            self.changed()
        self._apply_optimizer_parameters_()
        self.local_epoch = metadata["epoch"]
        self._update_scheduler()
        return donor

    async def _download_state(
        self, expected: ExpectedState, timeout: float, without: Collection[str], future: MPFuture
    ) -> None:
        def tell(news: Taking) -> None:
            with contextlib.suppress(queue.Full):
                self._news.put_nowait(news)

        try:
            future.set_result(await download(self, expected, timeout, without, tell))
        except Exception as error:
            future.set_exception(error)
