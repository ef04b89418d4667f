"""Training by steps of one's own, and averaging seldom (DiLoCo, arXiv:2311.08105)."""

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dalle_lib.swarm.averaging.averagers import RunGradientAverager
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer


class DistanceAverager(RunGradientAverager):
    """Averages how far each peer's parameters have come from the common ones, in the place of gradients."""

    common: list[torch.Tensor]
    """Where all peers started from; the owner sets it."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **{**kwargs, "reuse_grad_buffers": True})  # hivemind then keeps no sums of gradients

    def accumulate_grads_(self, batch_size: int) -> None:
        """Count the samples; what they did is in the parameters."""
        self.local_samples_accumulated += batch_size
        self.local_times_accumulated += 1

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Put the way that this peer's parameters have gone, backwards, as a gradient is."""
        with self.get_tensors() as distances:
            for distance, common, parameter in zip(distances, self.common, self.parameters, strict=True):
                distance.copy_(parameter).sub_(common).neg_()

    def reset_accumulated_grads_(self) -> None:
        """Count from zero."""
        self._accumulators_used_in_step = False
        self.local_samples_accumulated = self.local_times_accumulated = 0


class LocalUpdateOptimizer(CollaborativeOptimizer):
    """Each peer steps by `inner` at every batch; once an epoch all step together, by Nesterov's momentum.

    The gradient of the common step is how far the peers have come, averaged by the run's rule and weighted by samples.
    What `inner` remembers stays with each peer: a newcomer begins without.
    """

    averager_type = DistanceAverager

    def __init__(
        self, *, inner: Optimizer, inner_schedule: LRScheduler, outer_lr: float, outer_momentum: float, **kwargs
    ) -> None:
        self.inner, self.inner_schedule = inner, inner_schedule
        super().__init__(
            optimizer=lambda groups: torch.optim.SGD(
                [{"params": group["params"]} for group in groups], outer_lr, outer_momentum, nesterov=outer_momentum > 0
            ),
            delay_state_averaging=False,  # what arrives later would undo the steps made meanwhile
            **kwargs,
        )
        self.grad_averager.common = [p for group in self.opt.param_groups for p in group["params"]]

    def step(self, *args, **kwargs):
        """Step alone on this batch's gradient, and together at the end of an epoch."""
        while self.inner_schedule.last_epoch < self.local_epoch:
            self.inner_schedule.step()
        self.inner.step()
        return super().step(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the model."""
        self.inner.zero_grad(set_to_none=set_to_none)

    @property
    def learning_rate(self) -> float:
        """The rate of this peer's next step of its own."""
        return self.inner.param_groups[0]["lr"]
