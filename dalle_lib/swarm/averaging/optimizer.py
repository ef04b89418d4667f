"""The optimizer that the peers of a run share: in each epoch they average gradients and make one step together.

The life of an epoch, with the methods of `CollaborativeOptimizer` that take part in it:

1. **Accumulate.** `step` adds the gradient of a batch to the averager's sums, until all peers together have computed
   the target number of samples.
2. **Find a group.** Shortly before that, hivemind schedules the round: matchmaking begins in the averager's process.
3. **Average gradients.** `_update_global_epoch` and `_begin_averaging_gradients` start the round;
   `_average_gradients_and_load_into_optimizer` waits for it and compares this peer's epoch with the group's.
4. **Update.** hivemind steps the optimizer on the averaged gradient and copies the parameters to the model.
5. **Average parameters** when it is due: every few epochs, or at once if a peer lacks an update (`ParameterRounds`).

Three detours lead back into this circle. A peer that misses a round takes part in the others' next one with the
gradient it has, and then skips its own update (`_skip_to_their_epoch`). A peer that has ended an epoch before most of
its group takes their epoch again (`_go_back_to_their_epoch`). A peer that finds the others ahead when it first looks at
their progress in an epoch, or two epochs ahead later, drops its gradient and downloads their state
(`load_state_from_peers`), which says the epoch. Nobody goes to the last epoch because others say that they are there.

Threads: the *training thread* calls `step`. The *update thread* of hivemind makes the optimizer's steps. The *thread
that averages gradients* is the update thread if `delay_grad_averaging`, else the training thread. Averagers look for
groups and exchange tensors in processes of their own.
"""

import contextlib
import logging
import queue
import time

from hivemind.averaging.control import StepControl

from dalle_lib.swarm.averaging.complaints import RUN
from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.rounds import Brought, Group, LeftOut, ParameterRound, Round, why_failed
from dalle_lib.swarm.averaging.standing_by import StandingBy
from dalle_lib.swarm.averaging.two_groups import TWO_GROUPS, TwoGroups

logger = logging.getLogger(__name__)

SEARCH = 3.0
"""How long a peer that waits for an average of parameters looks for a group, in multiples of `matchmaking_time`."""

LOST_UPDATE = (
    "its own update of epoch {} was not made, or not whole, as when memory runs out; the others' parameters take the "
    "place of its own at their next average"
)


class CollaborativeOptimizer(StandingBy):
    """hivemind.Optimizer that loses no gradient when a round fails, and reports whose gradients each update holds.

    hivemind 1.1.12 clears its sums of gradients when a round begins and reads them again when it fails: it then steps
    on a zero gradient, with which LAMB still decays weights and statistics. Here the averager's buffers, which hold
    the local gradient until an average replaces it, are used in every case.

    A peer whose parameters lack an update that others made says so in the next round. The group of that round then
    averages parameters at once; those who lack an update have weight zero in it, so all become equal and no update is
    diluted. Where most of its users lack one, or among members half of them, and no vouched peer does not, those count
    with them who have their own gradient in its place (`of_most`), and where these are too few, all: then the update is
    diluted, as otherwise one peer could say that it alone has it.
    """

    _gradient_epoch: int = 0
    """Epoch whose gradients the current round averages; with delays, `local_epoch` is ahead of it by one.

    Set by the training thread when the round begins.
    """
    _parameter_bytes: tuple[int, int] = (0, 0)
    """Bytes sent and received in rounds of parameters since the last `Round` was reported.

    Raised by the training thread, set to zero by the thread that averages gradients.
    """

    def __init__(self, *, average_state_every: int = 5, **kwargs) -> None:
        self.rounds, self.two_groups = queue.SimpleQueue(), TwoGroups()
        super().__init__(**kwargs)
        self.parameter_rounds = ParameterRounds(self.state_averager, average_state_every, self.averaging_timeout)

    def step(self, *args, batch_size: int | None = None, **kwargs):
        """Count one batch, as hivemind.Optimizer does; ends the epoch if all peers together have enough samples.

        The gradient of a peer that does not count is dropped, unless nobody else is there.
        """
        was_counted = self.is_counted
        self._collect_parameters()
        if not was_counted and (self.is_counted or not self.tracker.is_alone):
            if not self.is_counted:
                self._wait_to_count(batch_size or self.batch_size_per_step)
            return None
        self._go_back_to_their_epoch()
        self._begin_averaging_parameters()
        self._introduce()
        return super().step(*args, batch_size=batch_size, **kwargs)

    def _introduce(self) -> None:
        """Set what this peer tells the group of its next round of gradients."""
        self.grad_averager.introduction = Introduction(
            self.local_epoch,
            self.is_behind,
            self.trust.token,
            is_reducer=self.is_counted,
            is_counted=self.is_counted,
            is_new=self.new_rounds > 0,
        )

    def _update_global_epoch(self, grad_scaler) -> None:
        """End the epoch: average gradients, update, and begin to average parameters if that is due."""
        if self.delay_optimizer_step:
            self.state_averager.step(wait_for_delayed_updates=True)
            self._begin_averaging_parameters()
        if self._joined_later_round:
            self._skip_to_their_epoch()
            return
        if self._go_back_to_their_epoch():
            return
        # The round of the epoch before may still run in the averager's process, though this peer has given it up.
        self.state_averager.wait_until_free(self.grad_averager.lock_averaged_tensors)
        super()._update_global_epoch(grad_scaler)
        self._go_back_to_their_epoch()
        self._begin_averaging_parameters()
        if self.parameter_rounds.pending is not None and not self.delay_state_averaging:
            searches_s = self.matchmaking_time + self.longest_matchmaking_s
            self.parameter_rounds.wait(max(SEARCH * self.matchmaking_time, searches_s))
            self._collect_parameters()
            self.state_averager.step(apply_delayed_updates=True)

    def _begin_averaging_gradients(self, grad_scaler) -> bool:
        """Start the round of this epoch's gradients; return False if this peer is alone."""
        self._gradient_epoch = self.local_epoch
        scheduled = self.scheduled_grads
        # Who waits to count would not count in a round with a peer that is lost in an epoch long past.
        is_left = not self.is_counted and self.tracker.is_alone
        is_alone = is_left or self.tracker.global_progress.num_peers <= 1
        if scheduled is not None and (is_alone or scheduled.triggered or scheduled.done()):
            scheduled.cancel()
            self.scheduled_grads = None  # if it has failed already, hivemind would not average at all
        if is_alone:
            own = {str(self.dht.peer_id): float(self.grad_averager.local_samples_accumulated)}
            self.rounds.put(Round(self.local_epoch, own, 0.0))
            self._brought.append(Brought(self.local_epoch, *own.values(), *own.values()))
            self.parameter_rounds.give_up()
            # It has computed an epoch with nobody there, so the run goes on from its parameters. If it went on waiting
            # to average them, newcomers would find a run of peers without weight.
            self.is_behind = False
            self._count(True)
            if self.tracker.newcomers > 0:  # nobody else would come to that round
                self.parameter_rounds.plan(self.local_epoch, is_urgent=True)
            return False
        return super()._begin_averaging_gradients(grad_scaler)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl) -> None:
        """Wait for the round of gradients, make its result the optimizer's gradient, and report it."""
        started = time.monotonic()
        group, failure = self._outcome(maybe_step_control)
        self._load_averaged_gradients_into_optimizer_()
        self.parameter_rounds.give_up()
        epoch = self._gradient_epoch
        self.new_rounds = 0 if len(group) > 1 else max(0, self.new_rounds - 1)
        common = self._common_epoch(group.epoch)
        self._joined_later_round, self._joined_earlier_round = common > epoch, common == epoch - 1
        if common != epoch or not group.is_whole:  # one beyond the group has an update that most of it lacks
            has_own = common == epoch and maybe_step_control.weight > 0
            self._misses = not has_own or (self.is_behind and self._misses)
            self._lacks, self.is_behind = min(common, epoch), True
        if apart := self.two_groups.apart(common, group.counted, self.tracker.voters):
            self.grad_averager.complaints.tell(RUN, TWO_GROUPS.format(common - 1, apart))
        was_split = apart > 0 and self.two_groups.is_urgent(common)
        asks = self.is_behind and not self.upload.steps_back  # else those who are too slow would meet each other alone
        is_urgent = was_split or asks or group.is_behind or self.tracker.newcomers > 0
        self.parameter_rounds.plan(common, is_urgent)
        sent, received = self._with_parameters(group)
        seconds = time.monotonic() - started
        self.rounds.put(Round(epoch, group.counted, seconds, failure, sent, received, group.unchecked))
        self._brought.append(Brought(epoch, group.counted.get(str(self.dht.peer_id), 0.0), sum(group.counted.values())))
        self._parameter_bytes = (0, 0)
        if self._joined_later_round or self._joined_earlier_round:
            came = "came too late for" if self._joined_later_round else "was an epoch ahead of"
            reason = f"it {came} the others' round; its gradient counts in that of epoch {common}"
            self.rounds.put(LeftOut(epoch, int(maybe_step_control.weight), reason, counts_in=common))

    def _common_epoch(self, of_group: int) -> int:
        """Return the epoch of a round: that of its group, or this peer's own if that is not what the users report.

        The later one of two peers says it, two of three an earlier one: who leads each other peer alone would have all
        of them skip their updates, or make one for ever.
        """
        of_group = max(of_group, min(self.tracker.epochs.least, self._gradient_epoch))
        if of_group > self._gradient_epoch and of_group > self.tracker.epochs.reported:
            # The training thread has paused updates before it waits; beside the update thread it computes on.
            with self.tracker.lock_global_progress if self.delay_grad_averaging else contextlib.nullcontext():
                self.tracker.look()  # they may have ended an epoch since the last look
            if of_group > self.tracker.epochs.reported:
                return self._gradient_epoch
        return of_group

    def _with_parameters(self, group: Group) -> tuple[int, int]:
        """Return the bytes sent and received in a round, with those of the rounds of parameters before it."""
        sent, received = self._parameter_bytes
        return sent + group.bytes_sent, received + group.bytes_received

    def _outcome(self, control: StepControl) -> tuple[Group, str | None]:
        """Return the group of a round of gradients and what this peer lacks of the average, if anything.

        After a failed round the group is this peer alone, with its own gradient.
        """
        try:
            group = self.state_averager.outcome_of(control, self.averaging_timeout)
        except Exception as error:
            is_late = isinstance(error, TimeoutError)
            cause = f"no round ended in {self.averaging_timeout:g} s" if is_late else why_failed(error)
            failure = f"this peer has its own gradient only: {self.tracker.who_reduces.problem or cause}"
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
            if self.is_counted:
                self._collect_parameters()  # of a round that has ended since this step began
            self._note_lost_update()
            self.parameter_rounds.begin(self._claim, self.trust.token)

    def _note_lost_update(self) -> None:
        """Get the others' parameters where this peer's own update was not made, or not whole."""
        if self.state_averager.lacks_update:
            self.state_averager.lacks_update = False
            self._misses, self._lacks, self.is_behind = True, self.local_epoch - 1, True
            self.grad_averager.complaints.tell(str(self.dht.peer_id), LOST_UPDATE.format(self.local_epoch - 1))

    def _collect_parameters(self) -> None:
        """Take over the result of a round of parameters that is over; a whole one brings all that this peer lacked."""
        if (group := self.parameter_rounds.collect()) is None:
            return
        self._parameter_bytes = self._with_parameters(group)
        if not self.is_counted and group.counted.get(str(self.dht.peer_id), 0.0) > 0:
            return  # all of the group wait to count: it has the parameters of none of the others
        self.rounds.put(ParameterRound(group.epoch, group.counted, group.is_whole))
        if group.is_whole:
            self.is_behind = self._lacks_as_all_did(group)  # first: the other thread may miss one meanwhile
            if group.epoch < self._lacks:  # an update that was missed while this round ran is not in it
                self.is_behind = True
            self._note_averaged(group)
            if not self.is_counted:
                self._count_after(group.epoch)

    @property
    def is_updating(self) -> bool:
        """Whether an update, or a round of parameters, runs in the background."""
        return self.parameter_rounds.is_running or not all(
            update.done() for update in self.state_averager.pending_updates
        )

    def _skip_to_their_epoch(self) -> None:
        """Take the others' epoch without an update, and keep the gradients since then for their next round.

        A peer that misses a round is in the group of the next one, with the gradients of its last epoch. hivemind
        would let it count that round as the one it missed, begin another at once, wait in vain for the others, miss
        them again, and so stay one epoch behind for good.
        """
        self._joined_later_round = False
        self._leave_scheduled_round()
        averaged = self._averaged_epoch if self._averaged_epoch <= self.tracker.epochs.latest else 0
        with self.tracker.pause_updates():
            theirs = min(max(self.tracker.global_epoch, averaged), self.total_epochs - 1)
            self._go_to_epoch(max(self.local_epoch + 1, theirs))
            self.tracker.update_epoch(self.local_epoch)
            self._should_check_synchronization_on_update = True
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.local_samples_accumulated)

    def _go_back_to_their_epoch(self) -> bool:
        """Return whether the last round was that of an epoch which this peer had ended; then take the others' epoch.

        Its update of that epoch, which they lack, is replaced with all of its parameters at the next average. hivemind
        would let it stay an epoch ahead for good: by its own count their samples are of an epoch that is over, so it
        comes to their rounds by chance, and too late.
        """
        if not self._joined_earlier_round:
            return False
        self._joined_earlier_round = False
        self._leave_scheduled_round()
        with self.tracker.pause_updates():
            self._go_to_epoch(self.local_epoch - 1)
            self.tracker.update_epoch(self.local_epoch)
            self.tracker.look()  # or the epoch that it was in before would end this one at once
            self._should_check_synchronization_on_update = True
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.local_samples_accumulated)
        return True

    def shutdown(self) -> None:
        """Leave the round that has not begun, and end the averagers."""
        if self.scheduled_grads is not None and self.scheduled_grads.done():
            self.scheduled_grads = None  # hivemind 1.1.12 would cancel it, which raises if that was done before
        self.state_averager.drop_updates()
        super().shutdown()
