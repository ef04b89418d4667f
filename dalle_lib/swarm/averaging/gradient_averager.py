"""The averager of gradients."""

from collections.abc import Callable, Sequence

from hivemind.optim.grad_averager import GradientAverager
from torch import Tensor

from dalle_lib.swarm.averaging.averagers import RunAverager


class RunGradientAverager(RunAverager, GradientAverager):
    """Averages gradients, as hivemind's averager does, which takes all batches of a peer to be of one size."""

    wire_type = GradientAverager

    def __init__(self, *args, others: Callable[[], Sequence[Tensor]] = list, **kwargs) -> None:
        """Take `others`, which returns tensors that only the trainer's process uses, beside parameters and gradients.

        The trainer puts others in their place later, so none of them is kept.
        """
        self._others = others
        super().__init__(*args, **kwargs)

    def accumulate_grads_(self, batch_size: int) -> None:
        """Add a gradient, so that this peer's mean is over samples: hivemind divides by the number of batches."""
        super().accumulate_grads_(batch_size)
        self.local_times_accumulated = self.local_samples_accumulated / self._anchor_batch_size

    def of_trainer(self) -> list[Tensor]:
        """Return parameters, their gradients and sums, and the others that this averager was told of."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return [*self.parameters, *gradients, *(self._local_accumulators or ()), *self._others()]
