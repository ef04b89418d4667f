"""The optimizer that the peers of a run share: in each epoch they average gradients and make one step together.

The life of an epoch, with the methods of `CollaborativeOptimizer` that take part in it:

1. **Accumulate.** `step` adds the gradient of a batch to the averager's sums, until all peers together have computed
   the target number of samples.
2. **Find a group.** Shortly before that, hivemind schedules the round: matchmaking begins in the averager's process.
3. **Average gradients.** `_update_global_epoch` and `_begin_averaging_gradients` start the round;
   `_average_gradients_and_load_into_optimizer` waits for it and compares this peer's epoch with the group's.
4. **Update.** hivemind steps the optimizer on the averaged gradient and copies the parameters to the model.
5. **Average parameters** when it is due: every few epochs, or at once if a peer lacks an update (`ParameterRounds`).

Two detours lead back into this circle. A peer that misses a round takes part in the others' next one with the gradient
it has, and then skips its own update (`_skip_to_their_epoch`). A peer that finds the others ahead when it first looks
at their progress in an epoch, or two epochs ahead later, drops its gradient and downloads their state
(`load_state_from_peers`), which says the epoch. Nobody goes to the last epoch because others say that they are there.

Threads: the *training thread* calls `step`. The *update thread* of hivemind makes the optimizer's steps. The *thread
that averages gradients* is the update thread if `delay_grad_averaging`, else the training thread. Averagers look for
groups and exchange tensors in processes of their own.
"""

import logging
import queue
import time

from hivemind.averaging.control import StepControl
from hivemind.utils import get_dht_time

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.rounds import Group, LeftOut, ParameterRound, Round
from dalle_lib.swarm.averaging.run_optimizer import RunOptimizer

logger = logging.getLogger(__name__)


class CollaborativeOptimizer(RunOptimizer):
    """hivemind.Optimizer that loses no gradient when a round fails, and reports whose gradients each update holds.

    hivemind 1.1.12 clears its sums of gradients when a round begins and reads them again when it fails: it then steps
    on a zero gradient, with which LAMB still decays weights and statistics. Here the averager's buffers, which hold
    the local gradient until an average replaces it, are used in every case.

    A peer whose parameters lack an update that others made says so in the next round. The group of that round then
    averages parameters at once; those who lack an update have weight zero in it, so all become equal and no update is
    diluted.
    """

    rounds: queue.SimpleQueue[Round | LeftOut | ParameterRound]
    """Reports of what became of each epoch's gradients, and of rounds of parameters.

    Both threads put them; the caller of `step` takes them.
    """
    parameter_rounds: ParameterRounds
    """The rounds in which parameters are averaged; its attributes name their threads."""
    is_behind: bool = False
    """Whether this peer's parameters lack an update that others made.

    Set by the thread that averages gradients; cleared by the training thread, when parameters have been averaged or a
    state was downloaded.
    """
    _gradient_epoch: int = 0
    """Epoch whose gradients the current round averages; with delays, `local_epoch` is ahead of it by one.

    Set by the training thread when the round begins.
    """
    _joined_later_round: bool = False
    """Whether the last round was that of the others' next epoch, so this peer's own next update is to be skipped.

    Set by the thread that averages gradients; cleared by the training thread.
    """
    _averaged_epoch: int = 0
    """Epoch that this peer's parameters were of when they were last averaged whole with others'.

    Only the training thread uses it.
    """
    _next_load: float = 0.0
    """When this peer may ask for a state again, in seconds of `time.monotonic`; only the training thread uses it."""
    _parameter_bytes_sent: int = 0
    """Bytes sent in rounds of parameters since the last `Round` was reported.

    Raised by the training thread, set to zero by the thread that averages gradients.
    """

    def __init__(self, *, average_state_every: int = 5, **kwargs) -> None:
        self.rounds = queue.SimpleQueue()
        super().__init__(**kwargs)
        self.parameter_rounds = ParameterRounds(self.state_averager, average_state_every, self.averaging_timeout)

    def step(self, *args, **kwargs):
        """Count one batch, as hivemind.Optimizer does; ends the epoch if all peers together have enough samples."""
        self._collect_parameters()
        self._begin_averaging_parameters()
        self.tracker.is_counted = counts = self.grad_averager.is_counted
        self.grad_averager.introduction = Introduction(
            self.local_epoch, self.is_behind, self.trust.token, is_counted=counts
        )
        return super().step(*args, **kwargs)

    def _update_global_epoch(self, grad_scaler) -> None:
        """End the epoch: average gradients, update, and begin to average parameters if that is due."""
        if self.delay_optimizer_step:
            self.state_averager.step(wait_for_delayed_updates=True)
            self._begin_averaging_parameters()
        if self._joined_later_round:
            self._skip_to_their_epoch()
            return
        super()._update_global_epoch(grad_scaler)
        self._begin_averaging_parameters()
        if self.parameter_rounds.pending is not None and not self.delay_state_averaging:
            self.parameter_rounds.wait()
            self._collect_parameters()
            self.state_averager.step(apply_delayed_updates=True)

    def _begin_averaging_gradients(self, grad_scaler) -> bool:
        """Start the round of this epoch's gradients; return False if this peer is alone."""
        self._gradient_epoch = self.local_epoch
        scheduled = self.scheduled_grads
        is_alone = self.tracker.global_progress.num_peers <= 1
        if scheduled is not None and (is_alone or scheduled.triggered or scheduled.done()):
            scheduled.cancel()
            self.scheduled_grads = None  # if it has failed already, hivemind would not average at all
        if is_alone:
            own = {str(self.dht.peer_id): float(self.grad_averager.local_samples_accumulated)}
            self.rounds.put(Round(self.local_epoch, own, 0.0))
            self.parameter_rounds.give_up()
            # It has computed an epoch with nobody there, so the run goes on from its parameters. If it went on waiting
            # to average them, newcomers would find a run of peers without weight.
            self.is_behind = False
            self._count(True)
            return False
        return super()._begin_averaging_gradients(grad_scaler)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl) -> None:
        """Wait for the round of gradients, make its result the optimizer's gradient, and report it."""
        started = time.monotonic()
        group, failure = self._outcome(maybe_step_control)
        self._load_averaged_gradients_into_optimizer_()
        self.parameter_rounds.give_up()
        epoch = self._gradient_epoch
        common = group.epoch if group.epoch <= self.tracker.epochs.latest else epoch
        self._joined_later_round = common > epoch
        self.is_behind |= self._joined_later_round or not group.is_whole
        self.parameter_rounds.plan(common, is_urgent=self.is_behind or group.is_behind)
        seconds, bytes_sent = time.monotonic() - started, self._parameter_bytes_sent + group.bytes_sent
        if group.counted:  # else it looked on
            self.rounds.put(Round(epoch, group.counted, seconds, failure, bytes_sent, group.unchecked))
            self._parameter_bytes_sent = 0
        if self._joined_later_round:
            reason = f"it came too late for the others' round; its gradient counts in that of epoch {group.epoch}"
            self.rounds.put(LeftOut(epoch, int(maybe_step_control.weight), reason, counts_in=group.epoch))

    def _outcome(self, control: StepControl) -> tuple[Group, str | None]:
        """Return the group of a round of gradients and what this peer lacks of the average, if anything.

        After a failed round the group is this peer alone, with its own gradient.
        """
        try:
            group = control.result(self.averaging_timeout)
        except Exception as error:
            is_late = isinstance(error, TimeoutError)
            cause = f"no round ended in {self.averaging_timeout:g} s" if is_late else in_one_line(error)
            failure = f"this peer has its own gradient only: {cause}"
            logger.warning("epoch %d: averaging failed: %s", self._gradient_epoch, failure)
            alone = Group({str(self.dht.peer_id): float(control.weight)}, self._gradient_epoch, is_whole=False)
            # Otherwise a group found after all would average a gradient that this peer has already applied.
            control.cancel()
            return alone, failure
        if group.is_whole:
            return group, None
        return group, "some parts did not come back; there this peer has its own gradient"

    def _begin_averaging_parameters(self) -> None:
        """Begin the round of parameters that is due, unless an update or another such round is in progress."""
        if not self.is_updating:
            self.parameter_rounds.begin(self.is_behind, self.trust.token, self.grad_averager.is_counted)

    def _collect_parameters(self) -> None:
        """Take over the result of a round of parameters that is over; a whole one brings all that this peer lacked."""
        if (group := self.parameter_rounds.collect()) is None:
            return
        self._parameter_bytes_sent += group.bytes_sent
        self.rounds.put(ParameterRound(group.epoch, group.counted, group.is_whole))
        if group.is_whole:
            self.is_behind = False
            self._averaged_epoch = group.epoch + 1
            scheduled = self.scheduled_grads
            if not (self.grad_averager.is_counted or scheduled is None or scheduled.triggered):
                self._leave_scheduled_round()  # its group was told that this peer does not count
            self._count(True)

    @property
    def is_updating(self) -> bool:
        """Whether an update, or a round of parameters, runs in the background."""
        return self.parameter_rounds.is_running or not all(
            update.done() for update in self.state_averager.pending_updates
        )

    def _leave_scheduled_round(self) -> None:
        """Leave the round of gradients that is scheduled; hivemind looks for another group at the next step."""
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self.scheduled_grads.cancel()
        self.scheduled_grads = None

    def _skip_to_their_epoch(self) -> None:
        """Take the others' epoch without an update, and keep the gradients since then for their next round.

        A peer that misses a round is in the group of the next one, with the gradients of its last epoch. hivemind
        would let it count that round as the one it missed, begin another at once, wait in vain for the others, miss
        them again, and so stay one epoch behind for good.
        """
        self._joined_later_round = False
        self._leave_scheduled_round()
        # Without their parameters, their epoch is hearsay.
        theirs = self.tracker.global_epoch if self.grad_averager.is_counted else 0
        averaged = self._averaged_epoch if self._averaged_epoch <= self.tracker.epochs.latest else 0
        with self.tracker.pause_updates():
            self._go_to_epoch(max(self.local_epoch + 1, min(max(theirs, averaged), self.total_epochs - 1)))
            self.tracker.update_epoch(self.local_epoch)
            self._should_check_synchronization_on_update = True
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.local_samples_accumulated)

    def _should_load_state_from_peers(self) -> bool:
        # hivemind asks before each step, and would load again at once where no state that is new enough was found.
        is_behind = super()._should_load_state_from_peers() or self.local_epoch < self.tracker.epochs.ahead - 1
        return is_behind and time.monotonic() >= self._next_load

    def load_state_from_peers(self, **_kwargs) -> None:
        """Take over the newest state that a peer may give, with its epoch, and drop the gradients accumulated so far.

        If no peer can give one, this peer goes on as in `average_state_with_peers`. hivemind 1.1.12 would try without
        end.
        """
        self._catch_up(asks_donors=True)

    def average_state_with_peers(self) -> None:
        """Go on from this peer's own state, which is older than the others', and ask nobody for theirs.

        Its gradients take part in rounds with weight zero until its parameters have been averaged with the others',
        which they do at their next round. If that does not come about, a donor is asked after all.
        """
        self._catch_up(asks_donors=False)
        left_s = max(0.0, self.tracker.global_progress.eta_next_epoch - get_dht_time())
        self._next_load += left_s + self.averaging_timeout

    def _catch_up(self, asks_donors: bool) -> None:
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self._tag_along_with_zero_weight(self.scheduled_grads)
        self.scheduled_grads = None
        self.state_averager.step(wait_for_delayed_updates=True)
        self.parameter_rounds.give_up()
        dropped, epoch = self.grad_averager.local_samples_accumulated, self.local_epoch
        with self.tracker.pause_updates():
            theirs, latest = self.tracker.global_epoch, self.tracker.epochs.latest
            is_loaded = asks_donors and self._load_from_donor(latest)
            self._next_load = time.monotonic() + self.averaging_timeout
            if not is_loaded and theirs <= epoch:
                return  # half of the users say that they are ahead, and nobody has shown it
            self.is_behind = not is_loaded or self.local_epoch < theirs
            self._count(is_loaded)
            # The donor may be about to make the update that the others have made.
            is_nearly_there = is_loaded and self.local_epoch + 1 == theirs < self.total_epochs
            self._go_to_epoch(theirs if is_nearly_there else self.local_epoch)
            self.grad_averager.reset_accumulated_grads_()
            # Otherwise the samples of the epoch before would end this one at once.
            self.tracker.update_epoch(self.local_epoch)
        self._joined_later_round, self.parameter_rounds.due_after = False, None
        own = "no peer could give its state, so it" if asks_donors else "it goes on from its own state, and"
        taken = "took over their state" if is_loaded else f"{own} waits to average its parameters"
        reason = f"the others are at epoch {max(theirs, self.local_epoch)}: {taken}"
        self.rounds.put(LeftOut(epoch, dropped, reason, is_waiting=not is_loaded))

    def _load_from_donor(self, latest: int) -> bool:
        timeout_s = self.next_chunk_timeout
        return self.state_averager.load_state_from_peers(timeout=timeout_s, max_epoch=latest) is not None

    def _count(self, is_counted: bool) -> None:
        """Let this peer's gradients count and its state be downloaded, or neither: nobody else has its parameters."""
        self.grad_averager.is_counted = is_counted
        self.state_averager.allow_state_sharing = is_counted and not self.client_mode

    def _go_to_epoch(self, epoch: int) -> None:
        self.state_averager.local_epoch = epoch
        self.state_averager._update_scheduler()
        if not self.client_mode:
            self.state_averager.state_sharing_priority = epoch

    def shutdown(self) -> None:
        """Leave the round that has not begun, and end the averagers."""
        if self.scheduled_grads is not None and self.scheduled_grads.done():
            self.scheduled_grads = None  # hivemind 1.1.12 would cancel it, which raises if that was done before
        super().shutdown()
