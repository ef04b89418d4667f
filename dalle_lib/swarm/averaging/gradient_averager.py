"""The averager of gradients."""

from collections.abc import Sequence

from hivemind.optim.grad_averager import GradientAverager
from torch import Tensor

from dalle_lib.swarm.averaging.averagers import RunAverager


class RunGradientAverager(RunAverager, GradientAverager):
    """Averages gradients, as hivemind's averager does, which takes all batches of a peer to be of one size."""

    wire_type = GradientAverager

    def __init__(self, *args, others: Sequence[Tensor] = (), **kwargs) -> None:
        """Take `others`, tensors that only the trainer's process uses, beside the parameters and their gradients."""
        self._others = others
        super().__init__(*args, **kwargs)

    def accumulate_grads_(self, batch_size: int) -> None:
        """Add a gradient, so that this peer's mean is over samples: hivemind divides by the number of batches."""
        super().accumulate_grads_(batch_size)
        self.local_times_accumulated = self.local_samples_accumulated / self._anchor_batch_size

    def of_trainer(self) -> list[Tensor]:
        """Return parameters, their gradients and sums, and the other tensors that this averager was given."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return [*self.parameters, *gradients, *(self._local_accumulators or ()), *self._others]
