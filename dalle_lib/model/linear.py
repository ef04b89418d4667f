"""Dense layers by the faster of two libraries: in float32 on AMD's processors by oneDNN, else as PyTorch does it.

oneDNN is part of PyTorch, which uses Intel's MKL for float32 all the same.
"""

import platform
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x` [..., inputs] times `weight` [outputs, inputs], plus `bias`, as `torch.nn.functional.linear` does.

    On an AMD processor with AVX-512, oneDNN is twice as fast as PyTorch's choice (benchmarks/linear.py). No other
    processor has been measured, so all others compute as PyTorch does, and so does this one while
    `torch.backends.mkldnn.enabled` is False. The gradient by oneDNN cannot itself be differentiated.
    """
    if not _suits_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    # Calling `apply` costs as much as some of the products of drawing, which needs no gradient.
    return (_OneDNN.apply if torch.is_grad_enabled() else _product)(x, weight, bias)


def _is_onednn_faster() -> bool:
    """Return whether oneDNN is installed, and the processor is of the kind for which it was measured."""
    cpus = Path("/proc/cpuinfo")
    vendor = cpus.read_text() if cpus.exists() else platform.processor()
    return (
        "AuthenticAMD" in vendor
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


_ONEDNN_IS_FASTER = _is_onednn_faster()


def _suits_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        _ONEDNN_IS_FASTER
        and torch.backends.mkldnn.enabled
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() > x.shape[-1]  # for one position, reading the weights takes longer than multiplying
        and weight.shape[1:] == x.shape[-1:]  # mismatched shapes are left to F.linear: its error is clearer
        and (bias is None or bias.shape == weight.shape[:1])
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # a compiler chooses its own kernels
    )


class _OneDNN(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, _ = inputs
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        outputs = dy.flatten(0, -2).t()  # [entries, positions]
        return (
            None if weight is None else _product(dy, weight.t()),
            None if x is None else _outer(outputs, x.flatten(0, -2).t()),
            outputs.sum(1) if ctx.needs_input_grad[2] else None,
        )


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of `left` and the transpose of `right`.

    oneDNN copies its first factor if that is transposed, but never its second: the smaller one comes first.
    """
    return _product(left, right) if len(left) <= len(right) else _product(right, left).t()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    bias = bias if bias is None else bias.contiguous()  # oneDNN would ignore its strides
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
