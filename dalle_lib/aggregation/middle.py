"""The middle of what peers say of each value, weighted and in order: the fast part of medians and trimmed means.

Sorting each column with its weights is what makes these rules slow. Three measures make it several times as fast as
torch.sort and gather (benchmarks/aggregation.py): values are handled in chunks that stay in the processor's cache; a
sorting network compares whole rows, not single values; and a weight needs no second array, because it travels in the
low bits of its value.
"""

import math
from collections.abc import Iterator
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

_CHUNK = 2**15
"""Values for which all peers are compared at a time, so that they stay in the processor's cache."""
_SPARE_BITS = 29
"""Low bits of a float64 that are zero in every float32 value: 52 bits of fraction, of which float32 has 23."""
_WEIGHT_BITS = 2**_SPARE_BITS - 1
"""Mask of those bits, which hold a peer's weight in whole units while its values are sorted."""


def middle(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], cut: float
) -> Float[Tensor, " values"]:
    """Return the weighted mean of each value's peers, in order, without `cut` of the weight at each end.

    Each end loses at least the heaviest peer's weight. At least one unit of weight is left, half of it on either side
    of the middle: that is the weighted median. All weights must be positive. The same, written plainly::

        def middle(parts, weights, cut):
            shares = weights.double() / weights.sum()
            cut = min(max(cut, float(shares.max())), 0.5 - 2**-30)
            kept_means = []
            for column in parts.double().T:
                values, order = column.sort()
                upto = shares[order].cumsum(0).clamp(cut, 1 - cut)
                kept = upto.diff(prepend=upto.new_tensor([cut]))
                kept_means.append((values * kept).sum() / kept.sum())
            return torch.stack(kept_means)
    """
    units = _units(weights)
    total = int(units.sum())
    low = min(max(cut * total, int(units.max())), total / 2 - 0.5)
    result = torch.empty(parts.shape[1], device=parts.device)
    for place, chunk in chunks(parts):
        tagged = chunk.view(torch.int64).bitwise_or_(units[:, None]).view(torch.float64)
        kept_sum, upto = torch.zeros_like(tagged[0]), torch.zeros_like(tagged[0])
        kept_before = torch.full_like(kept_sum, low)
        for row in sorted_rows(tagged):
            # Values and units part before arithmetic: a zero with units is a denormal number, which may be slow to add.
            bits = row.view(torch.int64)
            upto += bits & _WEIGHT_BITS
            kept = upto.clamp(low, total - low)
            kept_sum.addcmul_((bits & ~_WEIGHT_BITS).view(torch.float64), kept - kept_before)
            kept_before = kept
        result[place] = kept_sum / (total - 2 * low)
    return result


def chunks(parts: Float[Tensor, "peers values"]) -> Iterator[tuple[slice, Float[Tensor, "peers chunk"]]]:
    """Yield the place of each chunk of values and a copy of it in float64, in which sums of float32 do not overflow."""
    for begin in range(0, parts.shape[1], _CHUNK):
        place = slice(begin, begin + _CHUNK)
        yield place, parts[:, place].float().double()


def _units(weights: Float[Tensor, " peers"]) -> Int[Tensor, " peers"]:
    """Return the weights in whole units, whose sums are exact in any order and fit into the spare bits.

    The unit is a power of two: whole numbers of samples that are equal, or add up to half of all, remain so.
    """
    _, exponent = math.frexp(float(weights.sum()))
    return (weights / 2.0 ** (exponent - 1) * 2.0 ** (_SPARE_BITS - 2)).round().long()


def sorted_rows(values: Float[Tensor, "peers chunk"]) -> list[Float[Tensor, " chunk"]]:
    """Return the rows of `values` with each column sorted: the first row holds the least value at every place.

    Five times as fast as torch.sort for 8 peers (benchmarks/aggregation.py), because each exchange runs over whole
    rows. The same, written plainly::

        def sorted_rows(values):
            return list(values.sort(dim=0).values)
    """
    rows, spare = list(values), torch.empty_like(values[0])
    for low, high in _exchanges(len(rows)):
        torch.minimum(rows[low], rows[high], out=spare)
        torch.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return rows


@cache
def _exchanges(count: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of rows to put in order, one pair after another, so that all `count` rows are sorted.

    Source: Batcher's merge exchange (Knuth, The Art of Computer Programming, volume 3, section 5.2.2, algorithm M).
    """
    pairs, top = [], 1 << (count - 1).bit_length() >> 1
    width = top
    while width:
        pairs += [(i, i + width) for i in range(count - width) if not i & width]
        reach = top
        while reach != width:
            pairs += [(i, i + reach - width) for i in range(count - reach + width) if i & width]
            reach >>= 1
        width >>= 1
    return tuple(pairs)
