"""The averager of parameters, which gives this peer's state to newcomers and takes over that of a donor."""

import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.optim.state_averager import TrainingStateAverager, dump_optimizer_state, load_optimizer_state
from hivemind.utils import MPFuture

from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.donors import ExpectedState, Taking, download
from dalle_lib.swarm.averaging.leaving import LOOK_EVERY_S, Interrupted, Leaving
from dalle_lib.swarm.averaging.trust import Trust

MAX_NEWS = 100
"""Words of a download that wait to be told."""
_round: ContextVar[tuple[StepControl, int]] = ContextVar("round")
"""The round of a task and those that it began, in the averager's process, and the changes of the parameters before it:
the next round begins while one that was given up may still wait for the parameters."""


class RunStateAverager(Leaving, RunAverager, TrainingStateAverager):
    """Averages parameters and gives them to newcomers, as hivemind's averager of the training state does.

    Its rounds, and `_download_state`, run in a process of their own, all other methods here in the trainer's.
    """

    wire_type = TrainingStateAverager
    tell_taking: Callable[[Taking], None] = staticmethod(lambda _: None)
    """Is told, every few seconds, how it stands with a state that `load_state_from_peers` takes over."""
    lacks_update = False
    """Whether an update that is over was not made whole; the update thread sets it, the owner clears it."""
    _begun = _over = 0
    """Updates that `local_epoch` counts, and those of them that are made, or never will be: several may wait where the
    others hold up the first. The owner changes the first number, the update thread the second."""
    _makes_updates = True
    """Whether updates may begin; the owner ends that for good."""
    _is_stepping = False
    """Whether the optimizer may be making an update now; changed by the update thread."""
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
        self._follow_updates()

    def _follow_updates(self) -> None:
        self.optimizer.register_step_pre_hook(self._begins)
        self.optimizer.register_step_post_hook(self._was_made)

    def step(
        self,
        *args,
        optimizer_step: bool = False,
        wait_for_delayed_updates: bool = False,
        delay_optimizer_step: bool = False,
        **options,
    ):
        """Do what hivemind's averager does, and know whether the update that it begins is made.

        Raises Interrupted if this peer leaves, and others keep what is waited for from its end.
        """
        longest_s = 2 * self._allreduce_timeout  # as `outcome_of` waits for a group and its round
        if wait_for_delayed_updates and not self.wait_for(self._is_up_to_date, longest_s):
            for update in self.pending_updates:  # as hivemind does; one that has begun goes on
                update.cancel()
        if optimizer_step and self._begun > self._over and self._is_up_to_date(0.0):
            raise Interrupted  # the update thread was
        if optimizer_step and not delay_optimizer_step:  # it would wait without end for the round that holds the lock
            self.wait_until_free(self.lock_averaged_tensors)
        before = set(self.pending_updates)
        if optimizer_step:
            self._begun += 1  # before it counts as an epoch
        own = {"optimizer_step": optimizer_step, "delay_optimizer_step": delay_optimizer_step}
        result = super().step(*args, **own, **options)
        for update in self.pending_updates - before:
            update.add_done_callback(self._note_called_off)
        return result

    def _note_called_off(self, update: Future) -> None:
        # It has waited in vain for the one before; `local_epoch` counts it none the less.
        if update.cancelled():
            self.lacks_update = True
            self._begun -= 1

    def drop_updates(self) -> None:
        """Wait no more for updates that others keep waiting, if this peer is to leave: it has saved all that it has."""
        if self.is_over():
            self.pending_updates = {update for update in self.pending_updates if update.done()}

    def _is_up_to_date(self, timeout_s: float) -> bool:
        return not wait(self.pending_updates, timeout_s).not_done

    @contextmanager
    def held(self, patience_s: float | None = None) -> Iterator[bool]:
        """Keep the statistics as they are while the block runs, and give whether the parameters are held, too.

        A round that averages them keeps this waiting, for `patience_s` at most. After that they are not held, and no
        update is made any more.
        """
        limit = () if patience_s is None else (True, patience_s)
        is_held = self.lock_averaged_tensors.acquire(*limit)
        if not is_held:
            self._makes_updates = False
            if self._is_stepping:  # it has the lock, since the round has ended just now: that takes a moment
                is_held = self.lock_averaged_tensors.acquire()
        try:
            yield is_held
        finally:
            if is_held:
                self.lock_averaged_tensors.release()

    def _do(self, wait_for_trigger, optimizer_step: bool, *args, **kwargs) -> None:
        # hivemind logs what ends an update early, as a lack of memory does, and goes on as if it had been made. It does
        # not catch Interrupted: such an update stays due.
        over = self._over
        try:
            super()._do(wait_for_trigger, optimizer_step, *args, **kwargs)
        finally:
            self._is_stepping = False
        if optimizer_step and self._over == over:
            self.lacks_update, self._over = True, over + 1

    def _begins(self, *_args) -> None:
        self._is_stepping = True  # first, or the owner might save while the update is made
        if not self._makes_updates:
            raise Interrupted

    def _was_made(self, *_args) -> None:
        self._over += 1
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
        """The number of updates in the parameters: less than `local_epoch` by the delayed ones that are to be made."""
        return self.local_epoch - (self._begun - self._over)

    def of_trainer(self) -> list[torch.Tensor]:
        """Return the model's parameters, the optimizer's statistics, and all their gradients."""
        own = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        _layout, statistics = dump_optimizer_state(self.optimizer)
        gradients = [p.grad for p in (*self.main_parameters, *own) if p.grad is not None]
        return [*self.main_parameters, *statistics, *gradients]

    async def _step(self, *, step: StepControl, **kwargs) -> None:
        _round.set((step, self._changes.value))
        await super()._step(step=step, **kwargs)

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        # A group may have been found while the trainer's process gave the round up, or went on without it, as on a busy
        # machine: the others would get an update that is not of their epoch, and this peer would lose one.
        step, changes_before = _round.get()
        if self._changes.value != changes_before:
            step._allow_retries = False
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

    def load_state_from_peers(
        self, timeout: float, max_epoch: int, without: Collection[str] = (), min_epoch: int | None = None
    ) -> str | None:
        """Take over parameters, statistics and epoch of a donor with a fitting state, and return its id; None if none.

        hivemind would also load the optimizer's settings. Here they come from the run card, whatever a donor says. A
        donor that is silent for `timeout` seconds is given up; one beyond `max_epoch`, or of a user in `without`, is
        not asked. The state is of this peer's epoch at least, or of `min_epoch`. None as soon as `is_over` says so,
        too.
        """
        _metadata, own_tensors, _infos = super().get_current_state()
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in own_tensors)
        earliest = self.local_epoch if min_epoch is None else min_epoch
        expected, future = ExpectedState(shapes, earliest, max_epoch), MPFuture()
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
        self.wait_until_free(self.lock_averaged_tensors)
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
