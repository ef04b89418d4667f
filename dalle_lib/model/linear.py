"""Dense layers: on a processor in float32 by oneDNN, which PyTorch brings along but leaves aside there."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `torch.nn.functional.linear` returns.

    PyTorch has MKL compute such products in float32, which on AMD's processors uses half of the vector width: there
    oneDNN is twice as fast (benchmarks/linear.py).
    """
    return (_OneDNN.apply if _suits_onednn(x, weight) else F.linear)(x, weight, bias)


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        _HAS_ONEDNN
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() > x.shape[-1]  # for one position, weights take longer to read than to multiply
        and x.shape[-1] == weight.shape[-1]  # or PyTorch's message, which is clearer
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # a compiler chooses by itself
    )


class _OneDNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        inputs, outputs = x.flatten(0, -2).t(), dy.flatten(0, -2).t()  # [entries, positions]
        return (
            _product(dy, weight.t()) if of_x else None,
            _outer(outputs, inputs) if of_weight else None,
            outputs.sum(1) if of_bias else None,
        )


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of `left` and the transpose of `right`; of the two, the smaller is copied."""
    return _product(left, right) if len(left) <= len(right) else _product(right, left).t()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
