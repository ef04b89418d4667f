"""The optimizer that peers share: hivemind's, with what its release gets wrong put right."""

import concurrent.futures
import contextlib
import logging
import queue
import sys
import time
from functools import partial

import hivemind
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.averagers import RunGradientAverager, RunStateAverager
from dalle_lib.swarm.averaging.progress import PlausibleProgress
from dalle_lib.swarm.averaging.rounds import Group, LeftOut, Round
from dalle_lib.swarm.averaging.trust import Introduction, Trust

logger = logging.getLogger(__name__)


class CollaborativeOptimizer(hivemind.Optimizer):
    """hivemind.Optimizer that loses no gradient when a round fails, and tells whose gradients each epoch holds.

    hivemind 1.1.12 clears its accumulators when a round begins and reads them again when it fails: a zero gradient,
    with which LAMB still decays weights and statistics. The averager's buffers hold the local gradient throughout.

    A peer whose parameters lack an update that others made says so in the next round. That group then averages its
    parameters at once, in which those who lack an update have no weight: they are equal again, and dilute nothing.
    """

    averager_type: type[RunGradientAverager] = RunGradientAverager

    def __init__(
        self,
        *,
        dht: hivemind.DHT,
        total_epochs: int,
        trust: Trust,
        private_key: RSAPrivateKey | None = None,
        part_bytes: int = 2**19,
        average_state_every: int = 5,
        **kwargs,
    ) -> None:
        self.trust, self.total_epochs, self.private_key = trust, total_epochs, private_key
        self.rounds: queue.SimpleQueue[Round | LeftOut] = queue.SimpleQueue()
        self.is_behind = False
        """Whether this peer's parameters lack an update that others made."""
        self._joined_later_round = False
        self._round_epoch, self._bytes_sent, self._state_every = 0, 0, average_state_every
        self._state_epoch: int | None = None
        """The epoch after whose update parameters are to be averaged, until that begins."""
        self._doubted: dict[str, str] = {}
        self._state_round: hivemind.averaging.control.StepControl | None = None
        averager_options = {"trust": trust, "part_size_bytes": part_bytes}
        super().__init__(
            dht=dht,
            # left out, it would stay None on a client's DHT, and crash at the first epoch
            client_mode=dht.client_mode,
            average_state_every=sys.maxsize,  # this class averages parameters itself
            grad_averager_factory=partial(self.averager_type, **averager_options, allow_state_sharing=False),
            averager_opts=averager_options,
            **kwargs,
        )
        self.state_averager.max_epoch = total_epochs

    def _make_progress_tracker(self, target_batch_size: int, **kwargs) -> PlausibleProgress:
        return PlausibleProgress(
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            trust=self.trust,
            total_epochs=self.total_epochs,
            shortest_epoch_s=self.matchmaking_time,
            private_key=self.private_key,
            start=True,
            **kwargs,
        )

    def _make_state_averager(self, **kwargs) -> RunStateAverager:
        return RunStateAverager(
            dht=self.dht,
            prefix=f"{self.run_id}_state_averager",
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=self.offload_optimizer,
            custom_gradients=self.offload_optimizer,
            status_loglevel=self.status_loglevel,
            client_mode=self.client_mode,
            auxiliary=self.auxiliary,
            start=True,
            **{"request_timeout": self._request_timeout_s, **kwargs},
        )

    def _make_gradient_averager(self, factory, **kwargs) -> RunGradientAverager:
        return super()._make_gradient_averager(factory, **{"request_timeout": self._request_timeout_s, **kwargs})

    @property
    def _request_timeout_s(self) -> float:
        """Seconds to wait for another peer's answer: with more, two that ask each other miss the round."""
        return min(3.0, self.matchmaking_time / 2)

    def step(self, *args, **kwargs):
        """Count one batch, as hivemind.Optimizer does."""
        self._look_at_state_round()
        self._begin_state_round()
        self.grad_averager.introduction = Introduction(self.local_epoch, self.is_behind, self.trust.token)
        return super().step(*args, **kwargs)

    def load_state_from_peers(self, **_kwargs) -> None:
        """Take over the newest state that a peer may give.

        Without one, go on from the parameters that are here: they take part in rounds, but count for nothing until
        they have been averaged with the others'. hivemind 1.1.12 would try for ever.
        """
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self._tag_along_with_zero_weight(self.scheduled_grads)
        self.scheduled_grads = None
        self.state_averager.step(wait_for_delayed_updates=True)
        self._give_up_state_round()
        dropped, epoch = self.grad_averager.local_samples_accumulated, self.local_epoch
        with self.tracker.pause_updates():
            is_loaded = self.state_averager.load_state_from_peers(timeout=self.next_chunk_timeout)
            self.is_behind = not is_loaded or self.local_epoch < self.tracker.global_epoch
            self._count(is_loaded)
            self._go_to_epoch(max(self.local_epoch, self.tracker.global_epoch))
            self.grad_averager.reset_accumulated_grads_()
            self.tracker.update_epoch(self.local_epoch)  # or the samples of the epoch before would end this one at once
        self._joined_later_round, self._state_epoch = False, None
        taken = "took over their state" if is_loaded else "no peer could give its state, so it waits to average it"
        self.rounds.put(LeftOut(epoch, dropped, f"the others are at epoch {self.tracker.global_epoch}: {taken}"))

    def _count(self, is_counted: bool) -> None:
        """Let this peer's gradients count, and its parameters be taken over; or neither, where nobody knows them."""
        self.grad_averager.is_counted = is_counted
        self.state_averager.allow_state_sharing = is_counted and not self.client_mode

    def _go_to_epoch(self, epoch: int) -> None:
        self.state_averager.local_epoch = epoch
        self.state_averager._update_scheduler()
        if not self.client_mode:
            self.state_averager.state_sharing_priority = epoch

    def _update_global_epoch(self, grad_scaler) -> None:
        if self.delay_optimizer_step:
            self.state_averager.step(wait_for_delayed_updates=True)
            self._begin_state_round()
        if self._joined_later_round:
            self._skip_to_their_epoch()
            return
        super()._update_global_epoch(grad_scaler)
        self._begin_state_round()
        if self._state_round is not None and not self.delay_state_averaging:
            concurrent.futures.wait([self._state_round], self.averaging_timeout)
            self._look_at_state_round()
            self.state_averager.step(apply_delayed_updates=True)

    def _begin_state_round(self) -> None:
        """Begin to average parameters, if it is time to, and no update is on its way."""
        if self._state_epoch is None or self.is_updating:
            return
        introduction = Introduction(self._state_epoch, self.is_behind, self.trust.token)
        self._state_epoch, self.state_averager.introduction = None, introduction
        self._state_round = self.state_averager.schedule_step(timeout=self.averaging_timeout)
        self._state_round.weight = float(not self.is_behind)
        self._state_round.allow_allreduce()

    def _give_up_state_round(self) -> None:
        """End an averaging of parameters to which nobody has come: another update is about to change them."""
        pending = self._state_round  # the main thread may forget it while the update runs in another
        if pending is not None and not pending.began_allreduce and not pending.done():
            pending.cancel()

    def _look_at_state_round(self) -> None:
        """Find out whether averaging parameters has brought what this peer lacked, if it is over."""
        if self._state_round is None or not self._state_round.done():
            return
        done, self._state_round = self._state_round, None
        if done.cancelled():
            return
        self.state_averager.finished_averaging_round.set()  # hivemind then copies the parameters to the model
        if done.exception() is not None:
            logger.warning("averaging parameters failed: %s", done.exception())
            return
        self._bytes_sent += done.result().bytes_sent
        if done.result().is_whole:
            self.is_behind = False
            self._count(True)

    def _skip_to_their_epoch(self) -> None:
        """Take the others' epoch, and keep the gradients since then for their next round.

        A peer that misses a round is in the group of the next, with the gradients of its last epoch. hivemind would
        let it count that round as the one it missed, begin another one at once, wait in vain for the others, miss them
        again, and so stay one epoch behind for good.
        """
        self._joined_later_round = False
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self.scheduled_grads.cancel()
        self.scheduled_grads = None
        with self.tracker.pause_updates():
            self._go_to_epoch(max(self.local_epoch + 1, self.tracker.global_epoch))
            self.tracker.update_epoch(self.local_epoch)
            self._should_check_synchronization_on_update = True
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.local_samples_accumulated)

    def _begin_averaging_gradients(self, grad_scaler) -> bool:
        self._round_epoch = self.local_epoch
        scheduled = self.scheduled_grads
        is_alone = self.tracker.global_progress.num_peers <= 1
        if scheduled is not None and (is_alone or scheduled.triggered or scheduled.done()):
            scheduled.cancel()
            self.scheduled_grads = None  # with one that has failed already, hivemind would not average at all
        if is_alone:
            own = {str(self.dht.peer_id): float(self.grad_averager.local_samples_accumulated)}
            self.rounds.put(Round(self.local_epoch, own, 0.0))
            self._give_up_state_round()
            return False
        return super()._begin_averaging_gradients(grad_scaler)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control) -> None:
        started, epoch, failure = time.monotonic(), self._round_epoch, None
        try:
            group = maybe_step_control.result(self.averaging_timeout)
            if not group.is_whole:
                failure = "some parts did not come back, there this peer has its own gradient"
        except Exception as error:
            group = Group({str(self.dht.peer_id): float(maybe_step_control.weight)}, is_whole=False)
            failure = f"this peer has its own gradient only: {type(error).__name__}: {error}"
            logger.warning("epoch %d: averaging failed: %s", epoch, failure)
            maybe_step_control.cancel()  # or, found after all, the others would average a gradient that is spent
        self._load_averaged_gradients_into_optimizer_()
        self._give_up_state_round()
        common = epoch if group.epoch is None else group.epoch
        self._joined_later_round = common > epoch
        self.is_behind |= self._joined_later_round or not group.is_whole
        if self.is_behind or group.is_behind or (common + 1) % self._state_every == 0:
            self._state_epoch = common
        seconds, bytes_sent = time.monotonic() - started, self._bytes_sent + group.bytes_sent
        self.rounds.put(Round(epoch, group.counted, seconds, failure, bytes_sent))
        self._bytes_sent = 0
        if self._joined_later_round:
            reason = f"it came too late for the others' round; its gradient counts in that of epoch {group.epoch}"
            self.rounds.put(LeftOut(epoch, int(maybe_step_control.weight), reason))

    def shutdown(self) -> None:
        """Leave the round that has not begun, and end the averagers."""
        if self.scheduled_grads is not None and self.scheduled_grads.done():
            self.scheduled_grads = None  # hivemind 1.1.12 would cancel it, which raises if that was done before
        super().shutdown()

    @property
    def learning_rate(self) -> float:
        """The rate of the next step."""
        return self.opt.param_groups[0]["lr"]

    def problems(self) -> list[tuple[str, str]]:
        """Return what went wrong with other peers since the last call, as (peer id, what)."""
        doubted = self.tracker.doubted
        found = [(peer, what) for peer, what in doubted.items() if self._doubted.get(peer) != what]
        self._doubted = doubted
        for averager in self.grad_averager, self.state_averager:
            with contextlib.suppress(queue.Empty):
                while True:
                    found.append(averager.problems.get_nowait())
        return found

    @property
    def is_updating(self) -> bool:
        """Whether an update, or an averaging of parameters, runs in the background."""
        running = [*self.state_averager.pending_updates, *filter(None, [self._state_round])]
        return not all(update.done() for update in running)


def shared_options(card: RunCard, dht: hivemind.DHT, trust: Trust) -> dict:
    """Return the options of a CollaborativeOptimizer that follow from a card, whatever is optimised."""
    averaging = card.averaging
    compression = codec.compression(averaging.eight_bit_from)
    return {
        "dht": dht,
        "trust": trust,
        "run_id": card.key,
        "total_epochs": card.optimizer.total_epochs,
        "target_batch_size": averaging.target_batch_size,
        "offload_optimizer": True,
        "delay_optimizer_step": bool(averaging.delayed),
        "delay_grad_averaging": averaging.delayed == "averaging",
        "average_state_every": averaging.state_every,
        "part_bytes": averaging.part_bytes,
        "matchmaking_time": averaging.matchmaking_s,
        "averaging_timeout": averaging.timeout_s,
        "next_chunk_timeout": averaging.timeout_s / 2,
        "grad_compression": compression,
        "state_averaging_compression": compression,
        # hivemind looks at the others' progress every 10 s at most, every 3 s at first: too seldom for short epochs.
        "tracker_opts": {
            "max_refresh_period": min(10.0, averaging.matchmaking_s),
            "default_refresh_period": min(3.0, averaging.matchmaking_s / 3),
        },
    }
