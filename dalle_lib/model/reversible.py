"""The loop over the blocks: with what the backward pass needs kept, or recomputed there.

Both functions compute the same sums, block by block (f its attention layer, g its feed-forward layer)::

    x1 = x1 + f(x2)
    x2 = x2 + g(x1)

Autograd alone keeps the activations of all layers (`run`). But the inputs of a block follow from its outputs::

    x2 = x2 - g(x1)
    x1 = x1 - f(x2)

so `run_reversibly` keeps the last two streams only and goes back from block to block, running each layer once more.
Source: arXiv:1707.04585, as in arXiv:2001.04451.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Layer(NamedTuple):
    """What is added to one stream, [batch, seq, dim], when the other is read: `function(stream, *weights, *others)`."""

    function: Callable[..., Tensor]
    weights: tuple[nn.Module | nn.Parameter, ...]
    others: tuple = ()

    def __call__(self, stream: Tensor) -> Tensor:
        return self.function(stream, *self.weights, *self.others)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of `weights`."""
        return [p for part in self.weights for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())]


def run(blocks: Sequence[tuple[Layer, Layer]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both streams, [batch, seq, dim] each, after all blocks; both start as `x`."""
    x1 = x2 = x
    for attention, feed_forward in blocks:
        x1 = x1 + attention(x2)
        x2 = x2 + feed_forward(x1)
    return x1, x2


def run_reversibly(blocks: Sequence[tuple[Layer, Layer]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `run` returns, with the same gradients; memory for activations is that of one layer.

    The price is one more run of each layer in the backward pass, which cannot itself be differentiated.
    """
    layers = [layer for block in blocks for layer in block]
    parameters = {p: None for layer in layers for p in layer.parameters if p.requires_grad}  # each once, in order
    return _Reversible.apply(blocks, x, *parameters)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, blocks: Sequence[tuple[Layer, Layer]], x: Tensor, *parameters: nn.Parameter
    ) -> tuple[Tensor, Tensor]:
        ctx.blocks, ctx.parameters = blocks, parameters
        device = x.device.type
        ctx.autocast = {
            "device_type": device,
            "dtype": torch.get_autocast_dtype(device),
            "enabled": torch.is_autocast_enabled(device),
        }
        x1, x2 = run(blocks, x.detach())
        # The half-precision copies of weights that autocast made here have no graph; older versions of PyTorch would
        # hand them to the caller's next layers.
        torch.clear_autocast_cache()
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx, dx1: Tensor, dx2: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2 = ctx.saved_tensors
        gradients: dict[nn.Parameter, Tensor | None] = dict.fromkeys(ctx.parameters)
        with torch.autocast(**ctx.autocast):
            for attention, feed_forward in reversed(ctx.blocks):
                x2, dx1 = _undo(feed_forward, x1, x2, dx1, dx2, gradients)
                x1, dx2 = _undo(attention, x2, x1, dx2, dx1, gradients)
        return None, dx1 + dx2, *gradients.values()


def _undo(
    layer: Layer,
    read: Tensor,
    total: Tensor,
    dread: Tensor,
    dtotal: Tensor,
    gradients: dict[nn.Parameter, Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Return `total` before `total = total + layer(read)`, and the gradient of `read` before that line.

    `dread` and `dtotal` are the gradients of both streams after the line. The gradients of the layer's weights are
    added to `gradients`. This is a function of its own so that its activations are freed at its end.
    """
    trained = [p for p in layer.parameters if p in gradients]
    with torch.enable_grad():
        read = read.detach().requires_grad_()
        added = layer(read)
    dadded, *dtrained = torch.autograd.grad(added, [read, *trained], dtotal)
    for parameter, gradient in zip(trained, dtrained, strict=True):
        known = gradients[parameter]
        gradients[parameter] = gradient if known is None else known.add_(gradient)
    return total - added.detach(), dread + dadded
