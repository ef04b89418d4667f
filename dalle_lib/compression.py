"""Tensors in 8 bits a value, for sending."""

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

LEVELS = 256
_SIGN, _INFINITE = 0x8000, 0x7F80
"""Values are counted by the upper 16 bits of their float32: the sign's bit, and where infinity and NaN begin."""
_BINS = 24 * 128
"""Bins of each sign that are told apart, from the largest magnitude down: 24 powers of two, 128 bins in each."""
_GROUP = 8
"""Neighbouring bins whose density is taken as equal."""
_CHUNK = 2**15
"""Values that are decoded at a time, so that they stay in the processor's cache."""
_FEW = 1024
"""Up to so many bins in use, bins are wide for these values: they are centred, and means computed from the values."""


def quantize(values: Float[Tensor, " n"]) -> tuple[UInt8[Tensor, " n"], Float[np.ndarray, "256"]]:
    """Return the level of each value, and the codebook: the mean of the values at each level.

    Levels lie as densely as the cube root of the values' own density, which leaves the least mean squared error
    (Panter and Dite, 1951): close together where values are many, wide apart, but not missing, in heavy tails. Means
    keep the quantisation unbiased over the tensor. Raises ValueError for NaN or infinity.
    """
    values = values.float().contiguous()
    bins = _bins(values)
    counts = np.bincount(bins, minlength=2 * _SIGN)
    if counts[_INFINITE:_SIGN].sum() + counts[_SIGN + _INFINITE :].sum():
        raise ValueError("cannot quantise a tensor that holds NaN, infinity, or values beyond float32.")
    is_narrow = np.count_nonzero(counts) <= _FEW  # few different values, or a small range far from zero
    if is_narrow and len(values):
        bins = _bins(values - values.double().mean().float())
        counts = np.bincount(bins, minlength=2 * _SIGN)
    low, counts, edges = _in_order(counts)
    of_bin = _levels(counts, np.diff(edges))
    middle = len(of_bin) // 2
    table = np.full(2 * _SIGN, of_bin[middle])
    table[low + 1 : low + 1 + middle] = of_bin[middle + 1 :]
    table[_SIGN + low + 1 : _SIGN + low + 1 + middle] = of_bin[:middle][::-1]
    levels = np.take(table, bins, mode="clip")  # not for safety: it is quicker
    if is_narrow:
        sizes, sums = np.bincount(levels, minlength=LEVELS), np.bincount(levels, values.numpy(), LEVELS)
    else:
        sizes = np.bincount(of_bin, counts, LEVELS)
        sums = np.bincount(of_bin, counts * (edges[:-1] + edges[1:]) / 2, LEVELS)
    return torch.from_numpy(levels), (sums / np.maximum(sizes, 1)).astype(np.float32)


def dequantize(levels: UInt8[np.ndarray, " n"], codebook: Float[np.ndarray, " size"]) -> Float[Tensor, " n"]:
    """Return the codebook's value for each level. Raises ValueError for a level that the codebook does not have."""
    if len(levels) and int(levels.max()) >= len(codebook):
        raise ValueError(f"level {int(levels.max())} in a message whose codebook has {len(codebook)} entries.")
    values = np.empty(len(levels), np.float32)
    for start in range(0, len(levels), _CHUNK):
        part = slice(start, start + _CHUNK)
        np.take(codebook, levels[part], out=values[part], mode="clip")
    return torch.from_numpy(values)


def _bins(values: Float[Tensor, " n"]) -> Int[np.ndarray, " n"]:
    """Return the upper 16 bits of each value."""
    return values.numpy().view("<u2")[1::2].astype(np.intp)


def _in_order(counts: Int[np.ndarray, "65536"]) -> tuple[int, Float[np.ndarray, " bins"], Float[np.ndarray, " edges"]]:
    """Return the last bin that is too small to matter, the counts from the most negative bin on, and the bins' edges.

    All bins that are too small, of both signs, are one in the middle.
    """
    positive, negative = counts.reshape(2, _SIGN)
    used = np.flatnonzero(positive + negative)
    top = int(used[-1]) if len(used) else 0
    low = max(0, top - _BINS)
    outer = negative[low + 1 : top + 1][::-1], positive[low + 1 : top + 1]
    middle = counts.sum() - outer[0].sum() - outer[1].sum()
    ends = (np.arange(low + 1, top + 2, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    ends = np.minimum(ends, 2.0**128)
    in_order = np.concatenate((outer[0], [middle], outer[1])).astype(np.float64)
    return low, in_order, np.concatenate((-ends[::-1], ends))


def _levels(counts: Float[np.ndarray, " bins"], widths: Float[np.ndarray, " bins"]) -> UInt8[np.ndarray, " bins"]:
    """Return the level of each bin: each level has an equal share of the cube root of the density."""
    starts = np.arange(0, len(counts), _GROUP)
    density = np.add.reduceat(counts, starts) / np.add.reduceat(widths, starts)
    share = np.repeat(np.cbrt(density), _GROUP)[: len(counts)] * widths
    place = np.cumsum(share) - share / 2
    total = share.sum() or 1.0
    return (place * (LEVELS * (1 - 1e-9) / total)).astype(np.uint8)
