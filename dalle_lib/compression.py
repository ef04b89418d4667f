"""Tensors in 8 bits a value, for sending: `quantize` chooses 256 levels for the values at hand, `dequantize` undoes it.

The levels follow Panter and Dite (Quantization distortion in pulse-count modulation, 1951): the mean squared error is
least where levels lie as densely as the cube root of the values' own density. Values are counted by their nearest
bfloat16 numbers, "cells" below, since counting is quicker than sorting. On each side of zero, `_CELLS` cells are told
apart, from the largest magnitude in use down; all smaller values share one cell in the middle.

- n[c] is the number of values in cell c, d[c] its width (between the points half-way to the neighbouring bfloat16s);
- p[c] is the density: values per width, over a group of `_GROUP` neighbouring cells, counted as `_MIN_COUNT` at least;
- s[c] = p[c]^(1/3) d[c] is the cell's share of the levels; in the middle, p[c] = n[c] / d[c];
- the level of all values in cell c is ``floor(256 (sum of s[b] over b < c + s[c] / 2) / sum of all s[b])``;
- the codebook holds, for each level, the mean of its values.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

LEVELS = 256
_SIGN, _INFINITE = 0x8000, 0x7F80
"""A cell's number is the 16 bits of its bfloat16: the bit of the sign, and where infinity and NaN begin."""
_CELLS = 24 * 128
"""Cells told apart on each side of zero: 24 powers of two, 128 bfloat16 numbers in each."""
_GROUP = 8
"""Neighbouring cells whose density is taken as equal."""
_MIN_COUNT = 1 / 64
"""Values that an empty group counts as; with none, the gaps between a tensor's few largest values get no levels."""
_FEW = 1024
"""Cells in use up to which cells are too wide for the values: values are centred, and means computed from them."""
_STEPS = (np.arange(2 * _INFINITE, dtype=np.uint32) << 15).view(np.float32).astype(np.float64)
"""Magnitudes by turns: a cell's centre, which is a bfloat16, and the edge half-way to the next."""


def quantize(values: Float[Tensor, " n"]) -> tuple[UInt8[Tensor, " n"], Float[np.ndarray, "256"]]:
    """Return the level of each value, and the codebook: the mean of the values at each level, 0 for unused levels.

    Levels lie close together where values are many, and wide apart, but not missing, in heavy tails. Means keep the
    quantisation unbiased over the tensor. The formula is at the top of this module. The same, written plainly, for
    values that are not among the very largest of bfloat16::

        def quantize(values):
            x = values.double()
            are_few = len(values.bfloat16().unique()) <= 1024
            nearest = (values - x.mean().float() if are_few else values).bfloat16().double().numpy()
            numbers = (np.arange(0x7F80) << 16).astype(np.uint32).view(np.float32).astype(np.float64)
            top = max(3072, np.searchsorted(numbers, abs(nearest).max()))
            edges = (numbers[1:] + numbers[:-1])[top - 3072 : top + 1] / 2
            edges = np.concatenate([-edges[::-1], edges])
            n, d, is_middle = np.histogram(nearest, edges)[0], np.diff(edges), np.arange(6145) == 3072
            in_groups = n[~is_middle].reshape(-1, 8).sum(1), d[~is_middle].reshape(-1, 8).sum(1)
            p = np.insert(np.repeat(np.maximum(in_groups[0], 1 / 64) / in_groups[1], 8), 3072, n[3072] / d[3072])
            s = np.cbrt(p) * d
            level_of_cell = (256 * (1 - 1e-9) * (s.cumsum() - s / 2) / s.sum()).astype(np.uint8)
            levels = torch.from_numpy(level_of_cell[np.searchsorted(edges, nearest) - 1])
            source = x if are_few else x.bfloat16().double()
            means = [source[levels == level].mean().nan_to_num(0.0) for level in range(256)]
            return levels, torch.stack(means).float().numpy()

    Raises ValueError for NaN, infinity and what rounds to it.
    """
    values = values.float().contiguous()
    cells = _cells(values)
    counts, top = _count(cells)
    if top >= _INFINITE:
        raise ValueError("cannot quantise a tensor that holds NaN, infinity, or values beyond bfloat16.")
    are_few = np.count_nonzero(counts) <= _FEW  # few different values, or a small range far from zero
    if are_few and len(values):
        largest = torch.finfo(torch.bfloat16).max
        cells = _cells((values - values.double().mean().float()).clamp_(-largest, largest))
        counts, top = _count(cells)
    first = max(0, top - _CELLS) + 1
    told_apart = slice(first, first + _CELLS)
    counts = counts[:, told_apart].astype(np.float64)
    in_middle = len(values) - counts.sum()
    of_cell, of_middle = _levels(counts, in_middle, _STEPS[2 * first - 1 :: 2][: _CELLS + 1])
    table = np.full((2, _SIGN), of_middle)
    table[:, told_apart] = of_cell
    levels = torch.from_numpy(table.reshape(-1)).index_select(0, cells)
    if are_few:
        sizes, sums = (torch.bincount(levels, weights, LEVELS).numpy() for weights in (None, values.double()))
    else:
        # Summing over cells costs less than over values; what the middle adds to its level's sum is about zero.
        summed = counts * _STEPS[2 * first :: 2][:_CELLS] * [[1], [-1]]
        sizes, sums = (np.bincount(of_cell.reshape(-1), w.reshape(-1), LEVELS) for w in (counts, summed))
        sizes[of_middle] += in_middle
    return levels, (sums / np.maximum(sizes, 1)).astype(np.float32)


def dequantize(levels: UInt8[np.ndarray, " n"], codebook: Float[Tensor, " size"]) -> Float[Tensor, " n"]:
    """Return the codebook's value for each level: ``codebook[levels]``.

    Raises ValueError for a level that the codebook does not have.
    """
    if len(levels) and int(levels.max()) >= len(codebook):
        raise ValueError(f"level {int(levels.max())} in a message whose codebook has {len(codebook)} entries.")
    return codebook.index_select(0, torch.from_numpy(levels.astype(np.int32)))


def _cells(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the cell of each value: the bits of the nearest bfloat16, which gradients under autocast are already.

    In 32 bits, of which torch counts and looks up twice as many in the time that numpy takes for its 64.
    """
    return torch.from_numpy(values.bfloat16().view(torch.uint16).numpy().astype(np.int32))


def _count(cells: Int[Tensor, " n"]) -> tuple[Int[np.ndarray, "2 32768"], int]:
    """Return how many values are in each cell, by sign and magnitude, and the largest magnitude in use, or -1."""
    counts = torch.bincount(cells, minlength=2 * _SIGN).numpy().reshape(2, _SIGN)
    is_used = (counts[0] | counts[1]) > 0
    return counts, is_used.tobytes().rfind(b"\1")


def _levels(
    counts: Float[np.ndarray, "2 cells"], in_middle: float, edges: Float[np.ndarray, " edges"]
) -> tuple[UInt8[np.ndarray, "2 cells"], np.uint8]:
    """Return the level of each cell, and that of the middle, which reaches up to the first edge on both sides.

    `counts` are of positive and of negative values, by magnitude; `edges` are the magnitudes between which cells lie.
    """
    starts = np.arange(0, counts.shape[1], _GROUP)
    in_group = np.maximum(np.add.reduceat(counts, starts, axis=1), _MIN_COUNT)
    density = in_group / (edges[_GROUP::_GROUP] - edges[starts])
    share = np.repeat(np.cbrt(density), _GROUP, axis=1) * np.diff(edges)
    positive, negative = share.sum(1)
    middle = np.cbrt(in_middle / (2 * edges[0])) * 2 * edges[0]
    outwards = share.cumsum(1) - share / 2
    place = np.stack((negative + middle + outwards[0], negative - outwards[1]))
    scale = LEVELS * (1 - 1e-9) / (negative + middle + positive)
    return (place * scale).astype(np.uint8), np.uint8((negative + middle / 2) * scale)
