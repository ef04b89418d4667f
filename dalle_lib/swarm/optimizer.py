"""The optimizer that peers share: hivemind's, with what its release gets wrong put right."""

import copy
import logging
import queue
import time
from dataclasses import dataclass

import hivemind
import torch

from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard
from dalle_lib.swarm import codec
from dalle_lib.swarm.averaging import Counted, CountingGradientAverager, StateAverager

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Round:
    """One attempt to average gradients."""

    epoch: int
    counted: Counted
    """If the round failed, the update used this peer's own gradient."""
    seconds: float
    error: str | None = None


class CollaborativeOptimizer(hivemind.Optimizer):
    """hivemind.Optimizer that loses no gradient when a round fails, and tells whose gradients each epoch holds.

    hivemind 1.1.12 clears its accumulators when a round begins and reads them again when it fails: a zero gradient,
    with which LAMB still decays weights and statistics. The averager's buffers hold the local gradient throughout.
    """

    def __init__(self, *, dht: hivemind.DHT, **kwargs) -> None:
        self.rounds: queue.SimpleQueue[Round] = queue.SimpleQueue()
        self._joined_later_round = False
        # client_mode left out would stay None on a client's DHT, and crash at the first epoch.
        super().__init__(dht=dht, client_mode=dht.client_mode, grad_averager_factory=CountingGradientAverager, **kwargs)

    def _make_state_averager(self, **kwargs) -> StateAverager:
        return StateAverager(
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
            **kwargs,
        )

    def step(self, *args, **kwargs):
        """Count one batch, as hivemind.Optimizer does."""
        self.grad_averager.epoch = self.local_epoch
        return super().step(*args, **kwargs)

    def _update_global_epoch(self, grad_scaler) -> None:
        if self.delay_optimizer_step:
            self.state_averager.step(wait_for_delayed_updates=True)
        if self._joined_later_round:
            self._skip_to_their_epoch()
        else:
            super()._update_global_epoch(grad_scaler)

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
            self.state_averager.local_epoch = max(self.local_epoch + 1, self.tracker.global_epoch)
            self.state_averager._update_scheduler()
            self.tracker.update_epoch(self.local_epoch)
            self._should_check_synchronization_on_update = True
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.local_samples_accumulated)

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control) -> None:
        started, epoch, failure = time.monotonic(), self.grad_averager.epoch, None
        counted = {str(self.dht.peer_id): float(maybe_step_control.weight)}
        try:
            group = maybe_step_control.result(self.averaging_timeout)
            counted, self._joined_later_round = group.counted, group.epoch > epoch
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            logger.warning("epoch %d: averaging failed, using this peer's own gradient: %s", epoch, failure)
        self._load_averaged_gradients_into_optimizer_()
        self.rounds.put(Round(epoch, counted, time.monotonic() - started, failure))

    def _load_local_gradients_into_optimizer(self) -> None:
        samples = self.grad_averager.local_samples_accumulated
        super()._load_local_gradients_into_optimizer()
        self.rounds.put(Round(self.local_epoch, {str(self.dht.peer_id): float(samples)}, 0.0))

    @property
    def is_updating(self) -> bool:
        """Whether an update runs in the background."""
        return any(not update.done() for update in self.state_averager.pending_updates)


def build_optimizer(card: RunCard, model: torch.nn.Module, dht: hivemind.DHT) -> CollaborativeOptimizer:
    """Return the run's optimizer over `model`, connected to its peers."""
    lamb, averaging = card.optimizer, card.averaging
    compression = codec.compression(averaging.eight_bit_from)
    return CollaborativeOptimizer(
        dht=dht,
        run_id=card.key,
        target_batch_size=averaging.target_batch_size,
        params=parameter_groups(model, lamb.weight_decay),
        optimizer=lambda groups: LAMB8bit(
            groups,
            lr=lamb.lr,
            betas=lamb.betas,
            eps=lamb.eps,
            weight_decay=lamb.weight_decay,
            max_grad_norm=lamb.max_grad_norm,
            max_weight_norm=lamb.max_weight_norm,
            bits=lamb.bits,
        ),
        scheduler=lambda optimizer: linear_warmup_schedule(optimizer, lamb.warmup_epochs, lamb.total_epochs),
        offload_optimizer=True,
        delay_optimizer_step=averaging.delayed,
        delay_grad_averaging=averaging.delayed,
        average_state_every=averaging.state_every,
        matchmaking_time=averaging.matchmaking_s,
        averaging_timeout=averaging.timeout_s,
        next_chunk_timeout=averaging.timeout_s / 2,
        grad_compression=compression,
        state_averaging_compression=compression,
        # hivemind looks at the others' progress every 10 s at most, too seldom when epochs are short.
        tracker_opts={"max_refresh_period": min(10.0, averaging.matchmaking_s)},
    )


@dataclass(frozen=True)
class Snapshot:
    """All that is needed to go on from an epoch."""

    epoch: int
    parameters: list[torch.Tensor]
    """In the order of the optimizer's groups."""
    statistics: dict
    """The optimizer's state dict."""

    @property
    def is_finite(self) -> bool:
        """Whether no parameter holds NaN or infinity."""
        return bool(torch.stack([p.isfinite().all() for p in self.parameters]).all())


def take_snapshot(optimizer: CollaborativeOptimizer) -> Snapshot:
    """Return a copy of the parameters and statistics, after waiting for an update under way."""
    averager = optimizer.state_averager
    averager.step(wait_for_delayed_updates=True)
    with torch.no_grad(), averager.lock_averaged_tensors:
        parameters = [p.detach().clone() for group in optimizer.opt.param_groups for p in group["params"]]
        return Snapshot(optimizer.local_epoch, parameters, copy.deepcopy(optimizer.opt.state_dict()))


def restore_snapshot(optimizer: CollaborativeOptimizer, snapshot: Snapshot) -> None:
    """Go back to `snapshot`; gradients since then are dropped. If the others are ahead, the next step follows them."""
    averager = optimizer.state_averager
    averager.step(wait_for_delayed_updates=True)
    with torch.no_grad(), averager.lock_averaged_tensors:
        parameters = [p for group in optimizer.opt.param_groups for p in group["params"]]
        torch._foreach_copy_(parameters, snapshot.parameters)
        optimizer.opt.load_state_dict(copy.deepcopy(snapshot.statistics))
    averager._apply_optimizer_parameters_()
    averager.local_epoch = snapshot.epoch
    averager._update_scheduler()
    optimizer.grad_averager.reset_accumulated_grads_()
    optimizer.tracker.report_local_progress(snapshot.epoch, samples_accumulated=0)
    if not optimizer.client_mode:
        averager.state_sharing_priority = snapshot.epoch
