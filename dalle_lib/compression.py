"""Tensors in 8 bits a value, for sending."""

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

LEVELS = 256
_SIGN, _INFINITE = 0x8000, 0x7F80
"""Values are counted by the 16 bits of their bfloat16: the sign's bit, and where infinity and NaN begin."""
_BINS = 24 * 128
"""Bins of each sign that are told apart, from the largest magnitude down: 24 powers of two, 128 bins in each."""
_GROUP = 8
"""Neighbouring bins whose density is taken as equal."""
_LEAST = 1 / 64
"""Of a value, what an empty group counts as: else the gaps between a tensor's few largest values get no levels."""
_FEW = 1024
"""Up to so many bins in use, bins are wide for these values: they are centred, and means computed from the values."""
_STEPS = (np.arange(2 * _INFINITE, dtype=np.uint32) << 15).view(np.float32).astype(np.float64)
"""Magnitudes in turn: a bin's centre, which is a bfloat16, and the edge half-way to the next."""


def quantize(values: Float[Tensor, " n"]) -> tuple[UInt8[Tensor, " n"], Float[np.ndarray, "256"]]:
    """Return the level of each value, and the codebook: the mean of the values at each level.

    Levels lie as densely as the cube root of the values' own density, which leaves the least mean squared error
    (Panter and Dite, 1951): close together where values are many, wide apart, but not missing, in heavy tails. Means
    keep the quantisation unbiased over the tensor. Raises ValueError for NaN, infinity and what rounds to it.
    """
    values = values.float().contiguous()
    bins = _bins(values)
    counts, top = _count(bins)
    if top >= _INFINITE:
        raise ValueError("cannot quantise a tensor that holds NaN, infinity, or values beyond bfloat16.")
    is_narrow = np.count_nonzero(counts) <= _FEW  # few different values, or a small range far from zero
    if is_narrow and len(values):
        most = torch.finfo(torch.bfloat16).max
        bins = _bins((values - values.double().mean().float()).clamp_(-most, most))
        counts, top = _count(bins)
    first = max(0, top - _BINS) + 1
    told_apart = slice(first, first + _BINS)
    counts = counts[:, told_apart].astype(np.float64)
    in_middle = len(values) - counts.sum()
    of_bin, of_middle = _levels(counts, in_middle, _STEPS[2 * first - 1 :: 2][: _BINS + 1])
    table = np.full((2, _SIGN), of_middle)
    table[:, told_apart] = of_bin
    levels = torch.from_numpy(table.reshape(-1)).index_select(0, bins)
    if is_narrow:
        sizes, sums = (torch.bincount(levels, weights, LEVELS).numpy() for weights in (None, values.double()))
    else:
        weighted = counts * _STEPS[2 * first :: 2][:_BINS] * [[1], [-1]]
        sizes, sums = (np.bincount(of_bin.reshape(-1), w.reshape(-1), LEVELS) for w in (counts, weighted))
        sizes[of_middle] += in_middle
    return levels, (sums / np.maximum(sizes, 1)).astype(np.float32)


def dequantize(levels: UInt8[np.ndarray, " n"], codebook: Float[Tensor, " size"]) -> Float[Tensor, " n"]:
    """Return the codebook's value for each level. Raises ValueError for a level that the codebook does not have."""
    if len(levels) and int(levels.max()) >= len(codebook):
        raise ValueError(f"level {int(levels.max())} in a message whose codebook has {len(codebook)} entries.")
    return codebook.index_select(0, torch.from_numpy(levels.astype(np.int32)))


def _bins(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the bin of each value: the nearest bfloat16, which gradients under autocast are already.

    In 32 bits, of which torch counts and looks up twice as many in the time that numpy takes for its 64.
    """
    return torch.from_numpy(values.bfloat16().view(torch.uint16).numpy().astype(np.int32))


def _count(bins: Int[Tensor, " n"]) -> tuple[Int[np.ndarray, "2 32768"], int]:
    """Return how many values are in each bin, by sign and magnitude, and the largest magnitude in use, or -1."""
    counts = torch.bincount(bins, minlength=2 * _SIGN).numpy().reshape(2, _SIGN)
    is_used = (counts[0] | counts[1]) > 0
    return counts, is_used.tobytes().rfind(b"\1")


def _levels(
    counts: Float[np.ndarray, "2 bins"], in_middle: float, edges: Float[np.ndarray, " edges"]
) -> tuple[UInt8[np.ndarray, "2 bins"], np.uint8]:
    """Return the level of each bin, and of the one in the middle, up to the first edge, which both signs share.

    Each level has an equal share of the cube root of the density.
    """
    starts = np.arange(0, counts.shape[1], _GROUP)
    by_group = np.maximum(np.add.reduceat(counts, starts, axis=1), _LEAST)
    density = by_group / (edges[_GROUP::_GROUP] - edges[starts])
    share = np.repeat(np.cbrt(density), _GROUP, axis=1) * np.diff(edges)
    positive, negative = share.sum(1)
    middle = np.cbrt(in_middle / (2 * edges[0])) * 2 * edges[0]
    outwards = share.cumsum(1) - share / 2
    place = np.stack((negative + middle + outwards[0], negative - outwards[1]))
    scale = LEVELS * (1 - 1e-9) / (negative + middle + positive)
    return (place * scale).astype(np.uint8), np.uint8((negative + middle / 2) * scale)
