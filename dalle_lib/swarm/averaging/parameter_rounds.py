"""Rounds in which peers average their parameters: when one is due, and the one that runs."""

import logging

from hivemind.averaging.control import AveragingStage, StepControl

from dalle_lib.swarm.averaging.introductions import Introduction
from dalle_lib.swarm.averaging.rounds import Group, why_failed
from dalle_lib.swarm.averaging.state_averager import RunStateAverager

logger = logging.getLogger(__name__)

MAX_LATER = 2
"""Epochs by which peers may be ahead when they average parameters: an update is delayed by one, and where epochs are
short another passes while they look for a group."""


class ParameterRounds:
    """The plan for a peer's next round of averaging parameters, and the round in progress; one runs at a time.

    A round goes through `plan` (an update was made after which parameters are to be averaged), `begin` (matchmaking
    starts) and `collect` (its result reaches the model). Who waits for the others' parameters begins by `look_for`.
    Peers meet only within the epoch of the plan: parameters of another epoch would take an update back, or bring it a
    second time.
    """

    due_after: int | None = None
    """Epoch after whose update the next round begins; None while none is planned.

    Set by the thread that averages gradients; cleared by the training thread.
    """
    pending: StepControl | None = None
    """Handle of the round that has begun and is not collected.

    Changed by the training thread alone; the thread that averages gradients may cancel the round.
    """

    epoch: int = 0
    """Epoch after whose update the parameters of `pending` are averaged."""

    claimed: float = 1.0
    """What this peer's parameters claimed in the round that has begun last."""

    def __init__(self, averager: RunStateAverager, every: int, timeout_s: float) -> None:
        self.averager, self.every, self.timeout_s = averager, every, timeout_s

    @property
    def is_running(self) -> bool:
        """Whether a round has begun and is not over."""
        return self.pending is not None and not self.pending.done()

    def plan(self, epoch: int, is_urgent: bool) -> None:
        """Plan a round after the update of `epoch`, if it is urgent or the last of `every` epochs."""
        if is_urgent or (epoch + 1) % self.every == 0:
            self.due_after = epoch

    def begin(self, claim: float, token: bytes) -> None:
        """Start the planned round, if any, with what this peer's parameters claim: less than 1 if they are behind."""
        if self.due_after is not None:
            self._begin(Introduction(self.due_after, claim < 1.0, token), self.timeout_s, claim)
            self.due_after = None

    def is_looking(self, epoch: int) -> bool:
        """Whether a round runs that may still be that after `epoch`; one of an epoch long past is given up."""
        if epoch > self.epoch + MAX_LATER:
            self.give_up()
        return self.pending is not None and not self.pending.cancelled()

    def look_for(self, epoch: int, token: bytes, timeout_s: float, leads: bool) -> None:
        """Look for the others' round after `epoch`, for a peer that waits for their parameters.

        It leads no group and reduces nothing, unless it `leads`: where none of the others can.
        """
        self._begin(Introduction(epoch, True, token, is_reducer=leads, is_counted=False), timeout_s, 0.0)

    def _begin(self, introduction: Introduction, timeout_s: float, claim: float) -> None:
        self.averager.introduction, self.epoch, self.claimed = introduction, introduction.epoch, claim
        self.pending = self.averager.schedule_step(timeout=timeout_s)
        self.pending.weight = claim
        self.pending.allow_allreduce()

    def give_up(self) -> None:
        """Cancel a round that has no group, or none any more: an update is about to change the parameters."""
        pending = self.pending  # the training thread may clear the attribute meanwhile
        # hivemind's `began_allreduce` stays true while it looks for another group, after one has failed.
        has_group = (AveragingStage.RUNNING_ALLREDUCE, AveragingStage.FINISHED)
        if pending is not None and pending.stage not in has_group and not pending.done():
            pending.cancel()

    def wait(self, search_s: float) -> None:
        """Return when no round runs any more, or after `timeout_s`; without a group after `search_s` it is given up.

        Raises Interrupted if this peer leaves before.
        """
        if (pending := self.pending) is not None and not self.averager.ends_within(pending, search_s):
            self.give_up()
            self.averager.ends_within(pending, self.timeout_s)

    def collect(self) -> Group | None:
        """Return the group of a round that is over, once; None if none is over, or it failed or was given up.

        The averager then holds the average, which hivemind copies to the model at the next `state_averager.step`.
        """
        if self.pending is None or not self.pending.done():
            return None
        over, self.pending = self.pending, None
        if over.cancelled():
            return None
        self.averager.finished_averaging_round.set()
        if (error := over.exception()) is not None:
            logger.warning("averaging parameters failed: %s", why_failed(error))
            return None
        return over.result()
