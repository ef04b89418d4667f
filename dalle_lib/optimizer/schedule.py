"""The learning rate over a run."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear_warmup_schedule(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Return a schedule that rises linearly over `warmup_steps`, then falls linearly to zero at `total_steps`."""
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(f"expected 0 <= warmup_steps < total_steps, but got {warmup_steps} and {total_steps}.")

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return max(0.0, (total_steps - step) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)
