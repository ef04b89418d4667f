"""A step of a GPU that is recorded once as a CUDA graph, and replayed: the GPU then waits for no Python."""

from collections.abc import Callable

import torch
from torch import Tensor

from dalle_lib.model import DALLE
from dalle_lib.streaming.batches import Batch

_WARM = 2
"""Steps before the recording, in which libraries choose their kernels and take their workspaces."""


class Recorded:
    """Forward and backward pass of batches of one size, recorded with the weights where they are in memory now."""

    def __init__(
        self, model: DALLE, parameters: list[torch.nn.Parameter], batch: Batch, autocast: Callable[..., torch.autocast]
    ) -> None:
        """Record on batches such as this one. `autocast` makes the context of the forward pass."""
        self._model, self._parameters, self._autocast = model, parameters, autocast
        self._places = self._where()
        self._inputs = [ids.clone() for ids in (batch.text, batch.codes, batch.input_codes)]
        self._factor = torch.ones((), device=batch.text.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss, self._gradients = self._step()

    @property
    def is_stale(self) -> bool:
        """Whether the weights have moved in memory since, so that a replay would compute with old ones."""
        return self._places != self._where()

    def _where(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def __call__(self, batch: Batch, factor: float) -> Tensor:
        """Add the gradient of `factor` times the batch's mean loss to the parameters' `.grad`; return that loss."""
        for recorded, new in zip(self._inputs, (batch.text, batch.codes, batch.input_codes), strict=True):
            recorded.copy_(new)
        self._factor.fill_(factor)
        self._graph.replay()
        torch._foreach_add_([parameter.grad for parameter in self._parameters], self._gradients)
        return self._loss.clone()

    def _step(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        # Copies of weights that autocast keeps would be those of the recording for ever.
        with self._autocast(cache_enabled=False):
            loss = self._model.unchecked(*self._inputs).loss
        return loss.detach(), torch.autograd.grad(loss * self._factor, self._parameters)
