"""Local updates: each peer makes optimizer steps of its own, and all average once an epoch (DiLoCo, arXiv:2311.08105).

With ``common`` the parameters at the beginning of the epoch and ``local[i]`` those of peer i at its end, the outer
gradient is ``g = average over i of (common - local[i])``, by the run's rule and weighted by samples. The outer step is
SGD with Nesterov momentum on it::

    v = outer_momentum * v + g
    common = common - outer_lr * (g + outer_momentum * v)
"""

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dalle_lib.swarm.averaging.gradient_averager import RunGradientAverager
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer


class DistanceAverager(RunGradientAverager):
    """Averages `common - parameters`, the outer gradient, in the place of gradients."""

    common: list[torch.Tensor]
    """Parameters with which all peers began the epoch; the owner sets it."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **{**kwargs, "reuse_grad_buffers": True})  # hivemind then keeps no sums of gradients

    def accumulate_grads_(self, batch_size: int) -> None:
        """Count the samples; the parameters hold what they have changed."""
        self.local_samples_accumulated += batch_size
        self.local_times_accumulated += 1

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Load `common - parameters` as the outer gradient."""
        with self.get_tensors() as distances:
            for distance, common, parameter in zip(distances, self.common, self.parameters, strict=True):
                distance.copy_(parameter).sub_(common).neg_()

    def reset_accumulated_grads_(self) -> None:
        """Set the count of samples to zero."""
        self._accumulators_used_in_step = False
        self.local_samples_accumulated = self.local_times_accumulated = 0


class LocalUpdateOptimizer(CollaborativeOptimizer):
    """Steps `inner` at every batch, and once an epoch all peers together by SGD with Nesterov momentum.

    The statistics of `inner` stay with each peer; a newcomer begins without any.
    """

    averager_type = DistanceAverager

    def __init__(
        self, *, inner: Optimizer, inner_schedule: LRScheduler, outer_lr: float, outer_momentum: float, **kwargs
    ) -> None:
        self.inner, self.inner_schedule = inner, inner_schedule
        super().__init__(
            optimizer=lambda groups: outer_optimizer(groups, outer_lr, outer_momentum),
            delay_state_averaging=False,  # an average that arrives later would undo the steps made meanwhile
            **kwargs,
        )
        self.grad_averager.common = [p for group in self.opt.param_groups for p in group["params"]]

    def step(self, *args, **kwargs):
        """Make this peer's own step on the gradient of a batch, and the common one at the end of an epoch."""
        if self.inner_schedule.last_epoch > self.local_epoch:  # PyTorch's goes forward alone
            self.inner_schedule.last_epoch = self.local_epoch - 1
        while self.inner_schedule.last_epoch < self.local_epoch:
            self.inner_schedule.step()
        self.inner.step()
        return super().step(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of the model to zero, or to None."""
        self.inner.zero_grad(set_to_none=set_to_none)

    @property
    def learning_rate(self) -> float:
        """Learning rate of this peer's own next step."""
        return self.inner.param_groups[0]["lr"]


def outer_optimizer(groups: list[dict], lr: float, momentum: float) -> torch.optim.SGD:
    """Return what makes the outer step, over the parameters of these groups."""
    return torch.optim.SGD([{"params": group["params"]} for group in groups], lr, momentum, nesterov=momentum > 0)
