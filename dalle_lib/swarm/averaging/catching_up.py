"""How a peer whose parameters are older than the others' gets theirs: from a donor, or in a round of parameters.

Nobody else has the parameters of such a peer, so its gradients are worth nothing to the others. Until it counts again
it takes no part in rounds of gradients, where all would wait for what has no weight; the others see in the records of
progress that it is there, and average parameters after their next update.
"""

import contextlib
import logging
import queue
import time
from collections import deque

from hivemind.averaging.control import StepControl
from hivemind.utils import get_dht_time

from dalle_lib.swarm.averaging.earned import SLACK
from dalle_lib.swarm.averaging.islands import MAX_REMEMBERED, Island
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.reducing import OWN_GRADIENT
from dalle_lib.swarm.averaging.rounds import Brought, Group, LeftOut, ParameterRound, Round, why_failed
from dalle_lib.swarm.averaging.run_optimizer import RunOptimizer
from dalle_lib.swarm.bounded import put

logger = logging.getLogger(__name__)

SEARCHES = 2
"""Searches in vain for a round of parameters after which a donor is asked. The first may come before the others have
seen that this peer is there."""

APART = (
    "it trained apart from the others since epoch {:,}, and they go on in epoch {:,}; {:,} samples of its part are lost"
)
"""Why a peer takes over the state of others that lacks its last updates; its own samples of them are told, too."""

MAX_BROUGHT = 1000
"""Updates of which a peer remembers how many samples were in them."""

NEW_ROUNDS = 3
"""Rounds of gradients in vain in which a peer that is new only follows; then it leads, as all may be new."""


class CatchingUp(RunOptimizer):
    """An optimizer that knows whether its parameters are the others', and gets theirs if they are not."""

    rounds: queue.SimpleQueue[Round | LeftOut | ParameterRound]
    """Reports of what became of each epoch's gradients, and of rounds of parameters.

    Both threads put them; the caller of `step` takes them.
    """
    parameter_rounds: ParameterRounds
    """The rounds in which parameters are averaged; its attributes name their threads."""
    is_counted: bool = True
    """Whether this peer's gradients are of parameters that the others know; the training thread sets it."""
    is_behind: bool = False
    """Whether this peer's parameters lack an update that others made.

    Set by the thread that averages gradients; cleared by the training thread, when parameters have been averaged or a
    state was downloaded.
    """
    _lacks: int = 0
    """Epoch of the last update that it knows to be missing, or not whole; set with `is_behind`, just before it."""
    _misses: bool = True
    """Whether it lacks an update altogether while `is_behind`, and not only others' gradients in one; set before it."""
    _joined_later_round: bool = False
    """Whether the last round was that of the others' next epoch, so this peer's own next update is to be skipped.

    Set by the thread that averages gradients; cleared by the training thread.
    """
    _joined_earlier_round: bool = False
    """Whether the last round was that of the epoch before this peer's own, so its update is that of the others' epoch.

    Set and cleared by the same threads.
    """
    new_rounds: int = 0
    """Rounds of gradients in which this peer leads no group yet, unless it is in one before: it is new.

    Set by the training thread; lowered by the thread that averages gradients.
    """
    _averaged_epoch: int = 0
    """Epoch that this peer's parameters were of when they were last averaged whole with others'.

    Only the training thread uses it.
    """
    _averaged_with: dict[str, int]
    """The epoch of which this peer's parameters were when they were last averaged whole with each other peer's.

    Only the training thread uses it.
    """
    _brought: deque[Brought]
    """What was in the last of this peer's updates.

    The thread that averages gradients adds to it, and the training thread where nobody else is there; the latter takes
    out of it while no round of gradients runs.
    """
    _searches: int = 0
    """How often it has looked for a round of parameters since it waits; only the training thread uses it."""
    _next_load: float = 0.0
    """When this peer may ask for a state again, in seconds of `time.monotonic`; only the training thread uses it."""
    _looked_at: float = 0.0
    """When it last saw whether the others' epoch is about to end, in the same seconds."""

    def __init__(self, **kwargs) -> None:
        self._brought, self._averaged_with = deque(maxlen=MAX_BROUGHT), {}
        super().__init__(**kwargs)

    def _should_load_state_from_peers(self) -> bool:
        # hivemind asks before each step, and would load again at once where no state that is new enough was found.
        is_behind = super()._should_load_state_from_peers() or self.local_epoch < self.tracker.epochs.ahead - 1
        return (is_behind or self.tracker.parted.others is not None) and time.monotonic() >= self._next_load

    def load_state_from_peers(self, **_kwargs) -> None:
        """Take over the newest state that a peer may give, with its epoch, and drop the gradients accumulated so far.

        If no peer can give one, this peer goes on as in `average_state_with_peers`. hivemind 1.1.12 would try without
        end.
        """
        self._catch_up(asks_donors=True)

    def average_state_with_peers(self) -> None:
        """Go on from this peer's own state, which is older than the others', and ask nobody for theirs.

        Its gradients count once its parameters have been averaged with the others', which they do after their next
        update. If it does not find them then, nor at another update, a donor is asked after all.
        """
        self._catch_up(asks_donors=False)
        self._next_load = 0.0

    def replace_parameters(self, why: str, by: Island | None = None) -> None:
        """Take over a donor's state, as this peer's parameters are not the others', and drop its gradients.

        Where nobody gives one, the others' parameters take the place of its own at their next average. `why` says what
        is wrong with its own. With `by`, it is a state of that part of the run, to which this peer does not belong.
        """
        self._misses, self._lacks, self.is_behind = True, self.local_epoch - 1, True
        self._catch_up(asks_donors=True, why=why, by=by)
        if self.grad_averager.local_samples_accumulated:  # nobody gave a state
            self.drop_gradients(why)

    def drop_gradients(self, reason: str) -> None:
        """Go on in this epoch without the gradients accumulated in it, and tell why."""
        if self.scheduled_grads is not None and self.scheduled_grads.triggered:
            self.scheduled_grads = None  # with it, hivemind would end the next epoch without averaging
        dropped = self.grad_averager.local_samples_accumulated
        self.grad_averager.reset_accumulated_grads_()
        self.tracker.report_local_progress(self.local_epoch, samples_accumulated=0)
        self.rounds.put(LeftOut(self.local_epoch, dropped, reason))

    def _wait_to_count(self, batch_size: int) -> None:
        """Drop the gradient of a batch, and look for the others' next round of parameters.

        They begin it after the update that ends their epoch, so the search for it begins shortly before, and goes on
        for some time after. A donor is asked after `SEARCHES` in vain.
        """
        self._leave_scheduled_round()
        self.state_averager.step(apply_delayed_updates=True)
        # hivemind publishes records of peers that compute; the tracker tells the others of no samples. With those of a
        # whole epoch, this peer would end one at once if it were left alone.
        computed = self.tracker.local_progress.samples_accumulated + batch_size
        is_much = computed > self.tracker.target_batch_size // 2
        self.tracker.report_local_progress(self.local_epoch, batch_size if is_much else computed)
        step_s, self._looked_at = time.monotonic() - self._looked_at, time.monotonic()
        left_s = max(0.0, self.tracker.global_progress.eta_next_epoch - get_dht_time())
        epoch = self.tracker.global_epoch
        if left_s > self.matchmaking_time + step_s or self.parameter_rounds.is_looking(epoch):
            return
        if self._searches >= SEARCHES and time.monotonic() >= self._next_load:
            self.load_state_from_peers()
            return
        self._searches += 1
        timeout_s, leads = left_s + self.averaging_timeout, self.tracker.are_clients
        self.parameter_rounds.look_for(epoch, self.trust.token, timeout_s, leads)

    @property
    def _claim(self) -> float:
        """What this peer's parameters claim in an average of parameters."""
        return (0.0 if self._misses else OWN_GRADIENT) if self.is_behind else 1.0

    def _lacks_as_all_did(self, group: Group) -> bool:
        """Return whether an average lacks the update that this peer lacks: it had weight there, as all lacked one."""
        is_one_of_all = self.parameter_rounds.claimed == 0 and group.counted.get(str(self.dht.peer_id), 0.0) > 0
        return is_one_of_all and 2 * len(group) <= self.tracker.global_progress.num_peers

    def _note_averaged(self, group: Group) -> None:
        """Take note that this peer's parameters were averaged whole with those of a group."""
        self._averaged_epoch = group.epoch + 1
        for peer in group.counted:
            put(self._averaged_with, peer, group.epoch + 1, MAX_REMEMBERED)

    def _count_after(self, epoch: int) -> None:
        """Go on in the others' epoch, with the parameters that all had after `epoch`."""
        with self.tracker.pause_updates():
            self.tracker.look()
            # They may have made their next update while parameters were averaged; after two, it asks for their state.
            missed = self.tracker.global_epoch - epoch - 1
            self._misses, self.is_behind, self._next_load = True, missed > 0, 0.0
            self._go_to_epoch(min(epoch + 1 + (missed == 1), self.total_epochs - 1))
            self.grad_averager.reset_accumulated_grads_()
            self.tracker.update_epoch(self.local_epoch)
            self._should_check_synchronization_on_update = True
        self._count(True)
        self.new_rounds = 0 if self.tracker.are_clients else NEW_ROUNDS
        self.state_averager.step(apply_delayed_updates=True)

    def _leave_scheduled_round(self) -> None:
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self.scheduled_grads.cancel()
        self.scheduled_grads = None

    def _tag_along_with_zero_weight(self, control: StepControl) -> None:
        # hivemind does the same, and waits for its end however soon this peer is to leave.
        if not control.triggered:
            control.weight = 0
            control.allow_allreduce()
        try:
            with contextlib.suppress(Interrupted):  # it is called off, and what this peer has to do next ends it
                self.state_averager.outcome_of(control, self.averaging_timeout)
        except Exception as error:
            logger.warning("epoch %d: averaging failed: %s", self.local_epoch, why_failed(error))
            if not control.done():
                control.cancel()

    def _catch_up(self, asks_donors: bool, why: str = "", by: Island | None = None) -> None:
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self._tag_along_with_zero_weight(self.scheduled_grads)
        self.scheduled_grads, self._searches = None, 0
        self.state_averager.step(wait_for_delayed_updates=True)
        self.parameter_rounds.give_up()
        dropped, epoch = self.grad_averager.local_samples_accumulated, self.local_epoch
        others = by or self.tracker.parted.others
        with self.tracker.pause_updates():
            theirs, latest = self.tracker.global_epoch, self.tracker.epochs.latest
            if others is not None:
                theirs, latest = others.epoch, min(others.epoch + SLACK, self.total_epochs)
            donor = self._load_from_donor(latest, others) if asks_donors else None
            is_loaded = bool(donor)
            self._looked_at = time.monotonic()
            self._next_load = self._looked_at + self.averaging_timeout
            if not is_loaded and self.tracker.global_epoch <= epoch:
                return  # some say that theirs is the epoch of the run, and nobody has shown it
            self._misses, self.is_behind = True, not is_loaded or self.local_epoch < theirs
            self._count(is_loaded)
            self.new_rounds = NEW_ROUNDS if is_loaded else 0
            # The donor may be about to make the update that the others have made.
            is_nearly_there = is_loaded and self.local_epoch + 1 == theirs < self.total_epochs
            self._go_to_epoch(theirs if is_nearly_there else self.local_epoch)
            self.grad_averager.reset_accumulated_grads_()
            # Otherwise the samples of the epoch before would end this one at once.
            self.tracker.update_epoch(self.local_epoch)
            if self.local_epoch < epoch:  # it has left a part of the run that does not go on
                self._lacks = min(self._lacks, self.local_epoch - 1)
                self._averaged_epoch = min(self._averaged_epoch, self.local_epoch)
                self.tracker.look()
        self._joined_later_round = self._joined_earlier_round = False
        self.parameter_rounds.due_after = None
        own = "no peer could give its state, so it" if asks_donors else "it goes on from its own state, and"
        taken = "took over their state" if is_loaded else f"{own} waits to average its parameters"
        goes_on = self.local_epoch if is_loaded else theirs
        together = self.tracker.parted.together_until(goes_on, donor)
        if by is not None:
            known = by.peers & self._averaged_with.keys()
            together = max((self._averaged_with[peer] for peer in known), default=None)
        since, lost = self._leave_out_since(together, epoch)
        reason = why or f"the others are at epoch {max(theirs, self.local_epoch)}"
        gave_way = (since, goes_on) if by is not None or (not why and (lost or goes_on < epoch)) else None
        if lost and gave_way:
            reason = APART.format(since, max(theirs, self.local_epoch), int(sum(each.all for each in lost)))
        dropped += int(sum(each.own for each in lost))
        self.rounds.put(LeftOut(epoch, dropped, f"{reason}: {taken}", is_waiting=not is_loaded, gave_way=gave_way))

    def _leave_out_since(self, together: int | None, epoch: int) -> tuple[int, list[Brought]]:
        """Return since when this peer has made updates that those lack with whom it goes on, and forget these updates.

        `together` is the last epoch in which it was in step with them; None if it never was. It is now in `epoch`.
        """
        brought = tuple(self._brought)
        since = min([epoch, *(each.epoch for each in brought)] if together is None else [epoch, together])
        lost = [each for each in brought if since <= each.epoch < epoch]
        for each in lost:
            self._brought.remove(each)
        return since, lost

    def _load_from_donor(self, latest: int, others: Island | None) -> str | None:
        asked = {"without": self.tracker.beyond}
        if others is not None:
            asked = {"without": others.beside | self.tracker.beyond, "min_epoch": others.epoch - 1}
        timeout_s = self.next_chunk_timeout
        return self.state_averager.load_state_from_peers(timeout=timeout_s, max_epoch=latest, **asked)

    def _count(self, is_counted: bool) -> None:
        """Let this peer's gradients count and its state be downloaded, or neither: nobody else has its parameters."""
        self.is_counted = self.tracker.is_counted = is_counted
        self.state_averager.allow_state_sharing = is_counted and not self.client_mode

    def _go_to_epoch(self, epoch: int) -> None:
        self.state_averager.local_epoch = epoch
        self.state_averager._update_scheduler()
        if not self.client_mode:
            self.state_averager.state_sharing_priority = epoch
