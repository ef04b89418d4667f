"""The learning rate in the course of a run."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear_warmup_schedule(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Return a schedule that rises linearly over `warmup_steps`, then falls linearly to zero at `total_steps`.

    With w warm-up steps of n in all, step t (from 0) has the optimizer's own learning rate times::

        (t + 1) / w                      for t < w
        max(0, (n - t) / (n - w))        from then on

    Raises ValueError unless 0 <= w < n.
    """
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"expected 0 <= warmup_steps < total_steps, but got {warmup_steps} and {total_steps}.")

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return max(0.0, (total_steps - step) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)
