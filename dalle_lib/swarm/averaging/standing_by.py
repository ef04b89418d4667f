"""A peer that computes nothing for a while: it hands in the gradients that it has, holds nobody up, and comes back.

While it still has gradients, it takes part in the round that ends the epoch, as a peer whose speed is next to nothing.
After that, or where nobody else computes, its record of progress is withdrawn: the others end their epochs without it,
and a single one of them goes on alone. It still answers in the hash table, and gives its state to who asks. It misses
the updates that are made meanwhile, and takes over the others' state when it comes back.
"""

from abc import abstractmethod

from dalle_lib.swarm.averaging.catching_up import CatchingUp


class StandingBy(CatchingUp):
    """An optimizer that can be without batches."""

    is_updating: bool
    """Whether an update, or a round of parameters, runs in the background."""

    def stand_by(self) -> bool:
        """Go on with what is under way, and return whether nothing of this peer is left to be averaged.

        To be called every second or so by the thread that calls `step` otherwise, in the place of `step`. `come_back`
        ends it.
        """
        self._collect_parameters()
        self.state_averager.step(apply_delayed_updates=True)
        if self.tracker.is_withdrawn and not self._has_to_hand_in():
            return True
        self._begin_averaging_parameters()
        if self.is_updating:
            return False
        if not self._has_to_hand_in():
            self._leave_scheduled_round()
            self.tracker.withdraw()
            return True
        self.tracker.stand(self.local_epoch, self.grad_averager.local_samples_accumulated)
        self._introduce()
        self._maybe_schedule_gradient_averaging()
        if self.tracker.ready_to_update_epoch:
            self._update_global_epoch(None)
        return False

    def come_back(self) -> None:
        """Compute again: what the others have done meanwhile is taken over first."""
        if not self.tracker.goes_on():
            return
        with self.tracker.pause_updates():
            self.tracker.look()
        self.tracker.fetched_global_progress_this_epoch.set()
        self._should_check_synchronization_on_update = True
        if self.is_counted and self._should_load_state_from_peers():
            self.load_state_from_peers()

    @abstractmethod
    def _collect_parameters(self) -> None:
        """Take over the result of a round of parameters that is over."""

    @abstractmethod
    def _begin_averaging_parameters(self) -> None:
        """Begin the round of parameters that is due."""

    @abstractmethod
    def _introduce(self) -> None:
        """Set what this peer tells the group of its next round of gradients."""

    def _has_to_hand_in(self) -> bool:
        """Return whether gradients of this peer can still count in a round of the others."""
        is_lost = self.local_epoch < self.tracker.epochs.ahead - 1  # such a peer would drop them in `step`, too
        has_any = self.is_counted and self.grad_averager.local_samples_accumulated > 0
        return has_any and self.tracker.others_compute and not is_lost
