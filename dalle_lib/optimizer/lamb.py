"""The LAMB optimizer with statistics of one byte for each value."""

import logging
import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.optim import Optimizer

from dalle_lib.optimizer.blockwise import BLOCK, dequantize, quantize

logger = logging.getLogger(__name__)

QUANTISED_FROM = 65536
"""Tensors with fewer elements keep 32-bit statistics."""
_CHUNK = {"cpu": 64 * BLOCK, "cuda": 1024 * BLOCK}
"""Number of values updated at a time: few enough for a CPU's cache, and enough to keep a GPU busy."""
_IS_SIGNED = {"first": True, "second": False}
"""The two statistics, m and v, and whether their values can be negative."""


class LAMB8bit(Optimizer):
    """LAMB without bias correction, with gradients clipped together and statistics stored in 8 bits.

    A step changes each parameter w, a tensor of any shape with gradient g, by its own learning rate. Products, square
    roots and quotients are taken entry by entry, and all norms are Euclidean::

        g = g min(1, max_grad_norm / (G + 1e-6))      G: norm of the gradients of all parameters together, `grad_norm`
        m = beta1 m + (1 - beta1) g                   first statistic, at the start 0
        v = beta2 v + (1 - beta2) g g                 second statistic, at the start 0
        r = m / (sqrt(v) + eps) + lambda w            update; lambda: `weight_decay`
        w = w - eta phi(|w|) / |r| r                  eta: `lr`; phi(z) = min(z, max_weight_norm)

    Where ``|w|`` or ``|r|`` is 0, the factor ``phi(|w|) / |r|`` is 1. There is no bias correction: m and v are not
    divided by 1 - beta ** t. In the first steps this changes the balance of the two terms of r, while the length of r
    cancels.

    With `bits=8`, m and v of a parameter with at least `QUANTISED_FROM` entries are stored as `optimizer.blockwise`
    describes, `first` and `second` with a code for each entry, `first_scales` and `second_scales` with a float32 for
    each block; they are dequantised, updated in float32 and quantised again in each step. This moves the accumulated
    update by 1 to 2%, and by 5% where gradients of a matrix's columns differ by a factor of 100, since small values
    keep few bits beside large ones (see the tests). `bits=32` stores all in float32: the reference.

    Parameters may have any floating-point type; arithmetic is in float32, and gradients are left as they are. A step
    whose gradients are not all finite changes nothing, writes a warning to the log and is counted in `skipped_steps`.

    Statistics are on the device of their parameter and are updated in place. They exist from the start: otherwise
    hivemind would create them by a step with zero gradients, in which weight decay alone shrinks every weight.

    Raises ValueError for settings out of their range.
    Sources: arXiv:1904.00962 (LAMB), arXiv:2110.02861 (block-wise dynamic quantisation).
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.96),
        eps: float = 1e-6,
        weight_decay: float = 0.045,
        max_grad_norm: float = 4.0,
        max_weight_norm: float = 10_000.0,
        bits: int = 8,
    ) -> None:
        if bits not in (8, 32):
            raise ValueError(f"LAMB8bit stores statistics in 8 or 32 bits, but got bits={bits}.")
        are_finite = 0 <= lr < math.inf and 0 < eps < math.inf and 0 <= weight_decay < math.inf
        if not (are_finite and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(
                f"expected finite lr >= 0, eps > 0 and weight_decay >= 0, and betas in [0, 1), but got "
                f"lr={lr}, eps={eps}, weight_decay={weight_decay}, betas={betas}."
            )
        if not (max_grad_norm > 0 and max_weight_norm > 0):
            raise ValueError(
                f"expected norms above 0, but got max_grad_norm={max_grad_norm}, max_weight_norm={max_weight_norm}."
            )
        self.max_grad_norm, self.max_weight_norm, self.bits = max_grad_norm, max_weight_norm, bits
        self.grad_norm = math.nan
        self.skipped_steps = 0
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for p in self._parameters():
            self.state[p] = self._zeros(p)

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient; return what `closure` returns, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.grad_norm = _norm_of([p.grad for p in self._parameters() if p.grad is not None])
        if not math.isfinite(self.grad_norm):
            self.skipped_steps += 1
            logger.warning(
                "step skipped: the norm of the gradients is %s; %d so far", self.grad_norm, self.skipped_steps
            )
            return loss
        clip = min(1.0, self.max_grad_norm / (self.grad_norm + 1e-6))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group, clip)
        return loss

    def _update(self, p: Tensor, group: dict, clip: float) -> None:
        """Update one parameter and its statistics, chunk by chunk; `clip` is the factor of the gradients.

        The step depends on the norm of the whole update r, so all chunks but the last are computed twice. This takes no
        longer than storing r and reading it again, and needs no memory of the parameter's size.
        """
        weights, gradients, state = p.detach().contiguous().view(-1), p.grad.contiguous().view(-1), self.state[p]
        size = _chunk_size(p)
        chunks = [slice(start, min(start + size, p.numel())) for start in range(0, p.numel(), size)]

        def advanced(chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
            return _advance(state, chunk, weights[chunk].float(), gradients[chunk].float() * clip, group)

        norms = []
        for chunk in chunks:
            first, second, update = advanced(chunk)
            norms.append(torch.stack((vector_norm(weights[chunk], dtype=torch.float32), vector_norm(update))))
        weight_norm, update_norm = vector_norm(torch.stack(norms), dim=0)
        ratio = weight_norm.clamp(max=self.max_weight_norm) / update_norm
        step = -group["lr"] * ratio.where((weight_norm > 0) & (update_norm > 0), 1.0)
        for chunk in reversed(chunks):
            if chunk != chunks[-1]:
                first, second, update = advanced(chunk)
            weights[chunk].add_(update.mul_(step))
            _write(state, "first", chunk, first)
            _write(state, "second", chunk, second)
        if not p.is_contiguous():
            p.copy_(weights.view(p.shape))

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _zeros(self, p: Tensor) -> dict[str, Tensor]:
        """Return the statistics of a parameter at the start: zeros."""
        if self.bits == 32 or p.numel() < QUANTISED_FROM:
            return {name: torch.zeros(p.shape, dtype=torch.float32, device=p.device) for name in _IS_SIGNED}
        state = {}
        for name, signed in _IS_SIGNED.items():
            code, _scale = quantize(torch.zeros(1, device=p.device), signed)
            state[name] = code.expand(p.shape).contiguous()
            state[f"{name}_scales"] = torch.zeros(math.ceil(p.numel() / BLOCK), device=p.device)
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load statistics in the types they were saved in, where torch alone would turn 8-bit ones into float32.

        Raises ValueError, and loads nothing, unless their names, types and shapes are those of this optimizer.
        """
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError(f"expected a dictionary with 'state' and 'param_groups', but got {state_dict!r:.80}.")
        params = self._parameters()
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        if len(ids) != len(params):
            raise ValueError(f"expected statistics of {len(params)} parameters, but got those of {len(ids)}.")
        for number, (i, p) in enumerate(zip(ids, params, strict=True)):
            expected, came = _outline(self.state[p]), _outline(state_dict["state"].get(i, {}))
            if expected != came:
                raise ValueError(
                    f"expected the statistics {expected} of parameter {number}, but got {came}. "
                    f"Load a state that LAMB8bit with bits={self.bits} saved for the same model."
                )
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for i, p in zip(ids, params, strict=True):
            self.state[p] = {name: value.to(p.device, copy=True) for name, value in state_dict["state"][i].items()}


def _advance(state: dict, chunk: slice, weight: Tensor, gradient: Tensor, group: dict) -> tuple[Tensor, Tensor, Tensor]:
    """Return m, v and the update r of a chunk in this step; the formulas are those of `LAMB8bit`."""
    beta1, beta2 = group["betas"]
    first = _read(state, "first", chunk, beta1).add_(gradient, alpha=1 - beta1)
    second = _read(state, "second", chunk, beta2).addcmul_(gradient, gradient, value=1 - beta2)
    update = (weight * group["weight_decay"]).addcdiv_(first, second.sqrt().add_(group["eps"]))
    return first, second, update


def _read(state: dict, name: str, chunk: slice, factor: float) -> Tensor:
    """Return a chunk of a statistic in float32, multiplied by `factor`."""
    values = state[name].view(-1)[chunk]
    if f"{name}_scales" not in state:
        return values * factor
    return dequantize(values, state[f"{name}_scales"][_blocks(chunk)] * factor, _IS_SIGNED[name])


def _write(state: dict, name: str, chunk: slice, values: Tensor) -> None:
    if f"{name}_scales" in state:
        values, state[f"{name}_scales"][_blocks(chunk)] = quantize(values, _IS_SIGNED[name])
    state[name].view(-1)[chunk] = values


def _blocks(chunk: slice) -> slice:
    return slice(chunk.start // BLOCK, math.ceil(chunk.stop / BLOCK))


def _chunk_size(tensor: Tensor) -> int:
    return _CHUNK.get(tensor.device.type, _CHUNK["cuda"])


def _outline(state: dict) -> dict[str, tuple]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in state.items()}


def _norm_of(tensors: list[Tensor]) -> float:
    """Return the norm of all values of all tensors together.

    Norms are taken chunk by chunk: over tens of millions of values at once, a CPU's sum in float32 is 0.3% off.
    """
    norms = [
        vector_norm(part, dtype=torch.float32)
        for tensor in tensors
        for part in tensor.reshape(-1).split(_chunk_size(tensor))
    ]
    return float(vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))) if norms else 0.0
