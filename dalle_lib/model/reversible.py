"""Two streams through many layers without keeping what is between them: the backward pass recomputes it.

Source: arXiv:1707.04585, as in arXiv:2001.04451.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Layer(NamedTuple):
    """One of the functions that are added to the streams by turns."""

    function: Callable[[Tensor], Tensor]
    parts: tuple[nn.Module | nn.Parameter, ...]
    """What holds the weights that `function` reads."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those weights."""
        return [p for part in self.parts for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())]


def run(layers: Sequence[Layer], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both streams, [batch, seq, dim] each, at the end: each layer reads one and is added to the other.

    Keeps all that autograd needs. `run_reversibly` gives the same, and the same gradients, in memory for one layer.
    """
    x1 = x2 = x
    for layer in layers:
        x1, x2 = x2, x1 + layer.function(x2)
    return x1, x2


def run_reversibly(layers: Sequence[Layer], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `run` returns, at the price of running each layer once more in the backward pass.

    That pass cannot itself be differentiated.
    """
    parameters = {p: None for layer in layers for p in layer.parameters if p.requires_grad}  # each once, in order
    return _Reversible.apply(layers, x, *parameters)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layers: Sequence[Layer], x: Tensor, *parameters: nn.Parameter) -> tuple[Tensor, Tensor]:
        ctx.layers, ctx.parameters = layers, parameters
        device = x.device.type
        ctx.autocast = {
            "device_type": device,
            "dtype": torch.get_autocast_dtype(device),
            "enabled": torch.is_autocast_enabled(device),
        }
        x1, x2 = run(layers, x.detach())
        # Older versions of PyTorch would give the caller's next layers the half-precision weights of these, which have
        # no graph.
        torch.clear_autocast_cache()
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx, dx1: Tensor, dx2: Tensor) -> tuple[Tensor | None, ...]:
        streams = (*ctx.saved_tensors, dx1, dx2)
        gradients: dict[nn.Parameter, Tensor | None] = dict.fromkeys(ctx.parameters)
        with torch.autocast(**ctx.autocast):
            for layer in reversed(ctx.layers):
                streams = _undo(layer, *streams, gradients)
        *_, dx1, dx2 = streams
        return None, dx1 + dx2, *gradients.values()


def _undo(
    layer: Layer, x1: Tensor, x2: Tensor, dx1: Tensor, dx2: Tensor, gradients: dict[nn.Parameter, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return streams and their gradients as they were before `x1, x2 = x2, x1 + layer.function(x2)`.

    Adds to the gradients of the layer's parameters. A function of its own, so that nothing of it outlives it.
    """
    trained = [p for p in layer.parameters if p in gradients]
    with torch.enable_grad():
        read = x1.detach().requires_grad_()
        added = layer.function(read)
    dread, *dtrained = torch.autograd.grad(added, [read, *trained], dx2)
    for parameter, gradient in zip(trained, dtrained, strict=True):
        known = gradients[parameter]
        gradients[parameter] = gradient if known is None else known.add_(gradient)
    return x2 - added.detach(), x1, dx2, dx1 + dread
