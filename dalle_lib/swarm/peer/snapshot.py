"""Copies in memory of what a peer needs to go on from an epoch."""

import copy
import time
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.state_averager import RunStateAverager


@dataclass(frozen=True)
class Snapshot:
    """Parameters and optimizer statistics of one epoch."""

    epoch: int
    parameters: list[torch.Tensor]
    """In the order of the optimizer's groups."""
    statistics: dict
    """The optimizer's state dict."""

    @property
    def is_finite(self) -> bool:
        """Whether no parameter and no statistic holds NaN or infinity."""
        return _is_finite(self.parameters, self.statistics)


def take_snapshot(
    averager: RunStateAverager, earlier: Snapshot | None = None, patience_s: float | None = None
) -> Snapshot:
    """Return a copy of the parameters and statistics.

    If an update, or a round that averages parameters, is under way, it is waited for, for `patience_s` at most. After
    that, the copy is of the epoch before, or of the parameters before the round, and no update is made any more.
    It is made in the memory of an `earlier` copy, which is no copy any more: there is room for it at any time. Where
    they hold NaN or infinity, `earlier` stays as it is, and is returned.
    """
    if patience_s is None:
        averager.step(wait_for_delayed_updates=True)
    else:
        ends = time.monotonic() + patience_s
        wait(averager.pending_updates, patience_s)
        averager.step()
        patience_s = max(0.0, ends - time.monotonic())
    parameters, statistics = ([], {}) if earlier is None else (earlier.parameters, earlier.statistics)
    with torch.no_grad(), averager.held(patience_s) as is_held:
        of_optimizer = [p for group in averager.optimizer.param_groups for p in group["params"]]
        # The model's are those before the round, of which those of the optimizer have the average in part.
        own = [p.detach() for p in (of_optimizer if is_held else averager.main_parameters)]
        state = averager.optimizer.state_dict()
        if earlier is not None and not _is_finite(own, state):
            return earlier
        return Snapshot(averager.epoch_of_parameters, _copied(own, parameters), _copied(state, statistics))


def _is_finite(parameters: list[torch.Tensor], state_dict: dict) -> bool:
    statistics = [value for each in state_dict["state"].values() for value in each.values()]
    return all(bool(tensor.isfinite().all()) for tensor in (*parameters, *statistics))


def _copied(value: object, earlier: object) -> Any:
    """Return a copy of nested lists and dictionaries, its tensors in the memory of those of `earlier` that fit."""
    if isinstance(value, torch.Tensor):
        fits = isinstance(earlier, torch.Tensor) and (value.shape, value.dtype) == (earlier.shape, earlier.dtype)
        return earlier.copy_(value) if fits else value.clone()
    if isinstance(value, dict):
        before = earlier if isinstance(earlier, dict) else {}
        return {name: _copied(each, before.get(name)) for name, each in value.items()}
    if isinstance(value, list):
        before = earlier if isinstance(earlier, list) else []
        return [_copied(each, old) for each, old in zip_longest(value, before[: len(value)])]
    return copy.deepcopy(value)


def restore_snapshot(optimizer: CollaborativeOptimizer, snapshot: Snapshot, patience_s: float | None = None) -> None:
    """Go back to `snapshot`, and drop the gradients accumulated since then.

    If the other peers are ahead, the next step takes over their state. Raises Interrupted if this peer leaves while an
    update or a round is waited for. With `patience_s`, for a peer that leaves, a round is waited for no longer than
    that; while it goes on, the model and the statistics alone go back, and no update is made any more.
    """
    averager = optimizer.state_averager
    if patience_s is None:
        averager.step(wait_for_delayed_updates=True)
        averager.wait_until_free(averager.lock_averaged_tensors)
    with torch.no_grad(), averager.held(patience_s) as is_held:
        of_optimizer = [p for group in optimizer.opt.param_groups for p in group["params"]]
        torch._foreach_copy_(of_optimizer if is_held else list(averager.main_parameters), snapshot.parameters)
        optimizer.opt.load_state_dict(copy.deepcopy(snapshot.statistics))
        averager.changed()
    if is_held:
        averager._apply_optimizer_parameters_()
    averager.local_epoch = snapshot.epoch
    averager._update_scheduler()
    optimizer.grad_averager.reset_accumulated_grads_()
    optimizer.tracker.report_local_progress(snapshot.epoch, samples_accumulated=0)
    if not optimizer.client_mode:
        averager.state_sharing_priority = snapshot.epoch
