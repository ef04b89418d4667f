"""LAMB whose statistics take one byte a value."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from dalle_lib.optimizer.blockwise import dequantize, quantize

QUANTISED_FROM = 65536
"""Tensors with fewer elements keep 32-bit statistics."""


class LAMB8bit(Optimizer):
    """LAMB without bias correction; gradients are clipped together, statistics are stored block-wise in 8 bits.

    `bits=32` stores them in float32: the reference. A step whose gradients are not all finite changes nothing and is
    counted in `skipped_steps`. Statistics live on the device of their parameter, and exist from the start: hivemind
    would otherwise create them by a step with zero gradients, in which weight decay alone shrinks every weight.

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
        if lr < 0 or eps <= 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"expected lr >= 0, eps > 0, weight_decay >= 0 and betas in [0, 1), but got "
                f"lr={lr}, eps={eps}, weight_decay={weight_decay}, betas={betas}."
            )
        self.max_grad_norm, self.max_weight_norm, self.bits = max_grad_norm, max_weight_norm, bits
        self.grad_norm = math.nan
        self.skipped_steps = 0
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for p in group["params"]:
                for name in "first", "second":
                    self._write(self.state[p], name, torch.zeros_like(p, memory_format=torch.contiguous_format))

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient; gradients are scaled in place when they are clipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.grad_norm = float(torch.nn.utils.clip_grad_norm_(params, math.inf))
        if not math.isfinite(self.grad_norm):
            self.skipped_steps += 1
            return loss
        if self.grad_norm > self.max_grad_norm:
            torch._foreach_mul_([p.grad for p in params], self.max_grad_norm / (self.grad_norm + 1e-6))
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: Tensor, group: dict) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[p]
        first = self._read(state, "first", p).mul_(beta1).add_(p.grad, alpha=1 - beta1)
        second = self._read(state, "second", p).mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        update = (first / second.sqrt().add_(group["eps"])).add_(p, alpha=group["weight_decay"])
        self._write(state, "first", first)
        self._write(state, "second", second)
        weight_norm, update_norm = float(p.norm()), float(update.norm())
        ratio = min(weight_norm, self.max_weight_norm) / update_norm if weight_norm and update_norm else 1.0
        p.add_(update, alpha=-group["lr"] * ratio)

    def _is_quantised(self, p: Tensor) -> bool:
        return self.bits == 8 and p.numel() >= QUANTISED_FROM

    def _read(self, state: dict, name: str, p: Tensor) -> Tensor:
        """Return a statistic in float32."""
        if not self._is_quantised(p):
            return state[name]
        return dequantize(state[name], state[f"{name}_scales"], signed=name == "first")

    def _write(self, state: dict, name: str, value: Tensor) -> None:
        if self._is_quantised(value):
            state[name], state[f"{name}_scales"] = quantize(value, signed=name == "first")
        else:
            state[name] = value

    def load_state_dict(self, state_dict: dict) -> None:
        """Load statistics as they were saved; torch alone would turn the 8-bit ones into float32."""
        saved = {key: dict(value) for key, value in state_dict["state"].items()}
        super().load_state_dict(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        for i, p in zip(ids, params, strict=True):
            if i in saved:
                self.state[p] = {name: value.to(p.device, copy=True) for name, value in saved[i].items()}
