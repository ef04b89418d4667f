"""Tensors in 8 bits a value, for sending."""

import math

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LEVELS = 256
_RANGE_IN_DEVIATIONS = 6


def quantize_uniform(values: Float[Tensor, " n"]) -> tuple[UInt8[Tensor, " n"], Float[np.ndarray, "256"]]:
    """Return the level of each value, and the mean of the values at each level.

    Levels are evenly spaced over three standard deviations to either side of the mean; values beyond share the outer
    levels. Keeping means makes the quantisation unbiased over the tensor. Raises ValueError for NaN or infinity.
    """
    values = values.float()
    if not len(values):
        return torch.empty(0, dtype=torch.uint8), np.zeros(LEVELS, np.float32)
    centred = values - values.mean()
    scale = float(centred.norm()) / math.sqrt(max(len(values) - 1, 1)) * _RANGE_IN_DEVIATIONS / LEVELS
    if not math.isfinite(scale):
        raise ValueError("cannot quantise a tensor that holds NaN, infinity, or values beyond float32.")
    step = scale if scale > 0 else 1.0
    levels = centred.div_(step).round_().add_(LEVELS // 2).clamp_(0, LEVELS - 1).to(torch.uint8)
    counts = np.bincount(levels.numpy(), minlength=LEVELS)
    sums = np.bincount(levels.numpy(), weights=values.numpy(), minlength=LEVELS)
    return levels, (sums / np.maximum(counts, 1)).astype(np.float32)


def dequantize(levels: UInt8[np.ndarray, " n"], codebook: Float[np.ndarray, " size"]) -> Float[Tensor, " n"]:
    """Return the codebook's value for each level. Raises ValueError for a level that the codebook does not have."""
    if len(levels) and int(levels.max()) >= len(codebook):
        raise ValueError(f"level {int(levels.max())} in a message whose codebook has {len(codebook)} entries.")
    return torch.from_numpy(np.take(codebook, levels))
