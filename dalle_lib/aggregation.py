"""One gradient from those of many peers, some of which may lie.

`mean` is moved by a single liar as far as it likes. The other rules hold as long as liars have less than half of the
weight (`trimmed_mean`: no more than what it cuts off). Two peers cannot outvote each other, so every rule takes the
mean of two, and a single part as it is. Peers of weight zero are absent. No rule stops liars who stay within the
spread of honest gradients: they move it little in a round, but always the same way (arXiv:1902.06156).

Parts have passed `part_problem`, weights `weight_problem`. Rules compute from float32 values, and return them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

CUT = 0.25
"""Share of the weight that `trimmed_mean` cuts off at each end."""
FAR = 10.0
"""So many times as long as others no honest part is: one of a hundredth of the samples still has but ten times the
noise."""
_CHUNK = 2**15
"""Values for which all peers are compared at a time, so that they stay in the processor's cache."""
_SPARE_BITS = 29
"""Bits of a float64 that no float32 needs."""
_UNITS = 2**_SPARE_BITS - 1
"""Those bits, in which a peer's weight travels with its value."""
_ITERATIONS, _STILL = 20, 1e-6
"""Clipping is repeated so often at most, and until the centre moves by less than this share of the radius."""


def mean(parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]) -> Float[Tensor, " values"]:
    """Return the weighted mean. Raises ValueError if a weight is negative or not finite, or all are zero."""
    parts, weights = _present(parts, weights)
    return (weights / weights.sum()).float() @ parts.float()


def coordinate_median(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]
) -> Float[Tensor, " values"]:
    """Return the weighted median of each value; the middle of two where each side has half of the weight.

    Raises ValueError as `mean` does.
    """
    parts, weights = _present(parts, weights)
    return mean(parts, weights) if len(parts) < 3 else _middle(parts, weights, 0.5)


def trimmed_mean(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], cut: float = CUT
) -> Float[Tensor, " values"]:
    """Return the weighted mean of each value without the largest and the smallest, `cut` of the weight at each end.

    A peer on the edge counts with the rest of its weight. No less is cut than the heaviest peer has, or a quarter
    would not outvote one liar of three; where that is half of the weight, the median is left. Raises ValueError as
    `mean` does, and if `cut` is not in [0, 0.5].
    """
    if not 0 <= cut <= 0.5:
        raise ValueError(f"expected to cut between 0 and 0.5 of the weight at each end, but got {cut}.")
    parts, weights = _present(parts, weights)
    return mean(parts, weights) if len(parts) < 3 else _middle(parts, weights, cut)


def centered_clip(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], radius: float | None = None
) -> Float[Tensor, " values"]:
    """Return the centre from which all parts, each pulling no harder than from `radius` away, pull evenly.

    The search begins at the coordinate-wise median; the radius, unless given, is the weighted median of the parts'
    distances to it, the lower of two in the middle. Raises ValueError as `mean` does, and for a negative radius.

    Source: arXiv:2012.10333.
    """
    if radius is not None and not radius >= 0:
        raise ValueError(f"expected a radius of at least 0, or None to take the median distance, but got {radius}.")
    parts, weights = _present(parts, weights)
    if len(parts) < 3:
        return mean(parts, weights)
    start, shares = _middle(parts, weights, 0.5), weights / weights.sum()
    products = _products(parts, start)
    if radius is None:
        radius = _lower_median(products.diagonal().sqrt(), shares)
    pulls = _pulls(products, shares, radius)
    return (1 - pulls.sum()).float() * start + pulls.float() @ parts.float()


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean,
    "centered_clip": centered_clip,
    "coordinate_median": coordinate_median,
    "trimmed_mean": trimmed_mean,
}
"""The rules that a run can choose, by name."""


def capped(weights: Float[Tensor, " peers"], ratio: float = 4.0) -> Float[Tensor, " peers"]:
    """Return the weights, none above `ratio` times the median of the positive ones (the lower of two in the middle).

    Weights are what peers say of themselves, so one claim must not decide. Raise `ratio` where honest peers' speeds
    differ by more: what a fast one computes beyond it does not count. Raises ValueError as `mean` does.
    """
    _require_weights(weights)
    return weights.clamp(max=ratio * float(weights[weights > 0].median()))


def without_far(parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]) -> Float[Tensor, " peers"]:
    """Return the weights, zero for parts more than `FAR` times as long as the weighted median one.

    A rule that outvotes still gives way to a liar as far as to an honest peer at the edge. One who gives himself away
    need not be heard at all. Raises ValueError as `mean` does.
    """
    _require_weights(weights)
    lengths = parts.float().norm(dim=1)
    present = weights > 0
    median = _lower_median(lengths[present], (weights / weights.sum())[present])
    return weights if present.sum() < 3 or median == 0 else weights.where(lengths <= FAR * median, 0.0)


def capped_by_user(weights: Float[Tensor, " peers"], users: Sequence[str], share: float) -> Float[Tensor, " peers"]:
    """Return the weights with each user's cut to at most `share` of all that is left, over all of the user's peers.

    Where the shares of all users with samples together cannot reach one (a user alone, two with shares below a half),
    they weigh the same.
    """
    names = sorted(set(users))
    if share >= 1 or not weights.any():
        return weights
    belongs = torch.tensor([[user == name for user in users] for name in names])
    totals = (belongs * weights).sum(1)
    limit = _fair_limit(totals, share)
    scale = (limit / totals.clamp_min(torch.finfo(totals.dtype).tiny)).clamp(max=1.0)
    return weights * (belongs * scale[:, None]).sum(0)


def _fair_limit(totals: Float[Tensor, " users"], share: float) -> float:
    """Return the most that a user may weigh so that nobody has more than `share` of what is then left."""
    descending = totals[totals > 0].sort(descending=True).values
    for cut in range(len(descending)):
        # With `cut` users at the limit L: L = share * (cut * L + the rest).
        if cut * share >= 1:
            break
        limit = share * float(descending[cut:].sum()) / (1 - cut * share)
        if float(descending[cut]) <= limit:
            return limit
    return float(descending[-1])


def part_problem(part: Tensor, shape: tuple[int, ...]) -> str | None:
    """Return why `part` cannot be averaged with parts of `shape`, or None if it can."""
    if part.shape != torch.Size(shape):
        return f"its shape is {tuple(part.shape)}, but {tuple(shape)} was expected"
    if not part.is_floating_point():
        return f"it holds {part.dtype}, but floating-point numbers were expected"
    if not bool(part.float().isfinite().all()):
        return "it holds NaN, infinity, or values beyond float32"
    return None


def weight_problem(weight: float) -> str | None:
    """Return why a part cannot count with `weight`, or None if it can."""
    if math.isfinite(weight) and weight >= 0:
        return None
    return f"its weight is {weight}, but a finite number of at least 0 was expected"


def _require_weights(weights: Float[Tensor, " peers"]) -> None:
    if not (bool((weights >= 0).all()) and 0 < float(weights.double().sum()) < math.inf):
        raise ValueError(
            f"expected finite weights of at least 0, one of them positive, but got {weights.tolist()}: leave out peers "
            f"for which weight_problem gives a reason, and do not average what nobody computed."
        )


def _present(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]
) -> tuple[Float[Tensor, "present values"], Float[Tensor, " present"]]:
    """Return the parts whose weight is positive, and their weights in float64."""
    _require_weights(weights)
    is_present = weights > 0
    return (parts if bool(is_present.all()) else parts[is_present]), weights[is_present].double()


def _lower_median(values: Float[Tensor, " peers"], shares: Float[Tensor, " peers"]) -> float:
    """Return the least value that, with all below it, has half of the weight."""
    order = values.argsort()
    return float(values[order][shares[order].cumsum(0) >= 0.5 - 1e-9][0])


def _chunks(parts: Float[Tensor, "peers values"]) -> Iterator[tuple[slice, Float[Tensor, "peers chunk"]]]:
    """Yield where each chunk of values lies, and the chunk in float64, whose sums of float32 do not overflow."""
    for begin in range(0, parts.shape[1], _CHUNK):
        place = slice(begin, begin + _CHUNK)
        yield place, parts[:, place].float().double()


def _middle(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], cut: float
) -> Float[Tensor, " values"]:
    """Return the mean of what is left of each value's peers, in order, when `cut` of the weight is off each end.

    No less is off than the heaviest peer has, and at least one unit is left, half of it on either side of the middle.
    """
    units = _units(weights)
    total = int(units.sum())
    low = min(max(cut * total, int(units.max())), total / 2 - 0.5)
    middle = torch.empty(parts.shape[1], device=parts.device)
    for place, chunk in _chunks(parts):
        tagged = chunk.view(torch.int64).bitwise_or_(units[:, None]).view(torch.float64)
        summed, upto = torch.zeros_like(tagged[0]), torch.zeros_like(tagged[0])
        kept_before = torch.full_like(summed, low)
        for row in _sorted_rows(tagged):
            # Values and units part before arithmetic: a zero with units is a denormal number, which may be slow to add.
            bits = row.view(torch.int64)
            upto += bits & _UNITS
            kept = upto.clamp(low, total - low)
            summed.addcmul_((bits & ~_UNITS).view(torch.float64), kept - kept_before)
            kept_before = kept
        middle[place] = summed / (total - 2 * low)
    return middle


def _units(weights: Float[Tensor, " peers"]) -> Int[Tensor, " peers"]:
    """Return the weights in whole units, whose sums are exact in any order.

    The unit is a power of two, so that whole numbers of samples which are equal, or add up to half of all, still do.
    """
    _, exponent = math.frexp(float(weights.sum()))
    return (weights / 2.0 ** (exponent - 1) * 2.0 ** (_SPARE_BITS - 2)).round().long()


def _sorted_rows(values: Float[Tensor, "peers chunk"]) -> list[Float[Tensor, " chunk"]]:
    """Return rows, made of the rows of `values`, of which each holds the next larger value at every place.

    Five times as fast as torch.sort for 8 peers (benchmarks/aggregation.py): each exchange runs over whole rows.
    """
    rows, spare = list(values), torch.empty_like(values[0])
    for low, high in _exchanges(len(rows)):
        torch.minimum(rows[low], rows[high], out=spare)
        torch.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return rows


@cache
def _exchanges(count: int) -> tuple[tuple[int, int], ...]:
    """Return which two rows to put in order, one pair after another, so that all `count` are sorted.

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


def _products(parts: Float[Tensor, "peers values"], start: Float[Tensor, " values"]) -> Float[Tensor, "peers peers"]:
    """Return the inner products of the parts' offsets from `start`, in float64."""
    products = torch.zeros(len(parts), len(parts), dtype=torch.float64, device=parts.device)
    for place, chunk in _chunks(parts):
        offsets = chunk.sub_(start[place])
        products.addmm_(offsets, offsets.T)
    return products


def _pulls(
    products: Float[Tensor, "peers peers"], shares: Float[Tensor, " peers"], radius: float
) -> Float[Tensor, " peers"]:
    """Return how much of each part's offset from the start leads to the centre.

    The centre never leaves the plane of the parts, so all iterations happen among these few numbers: each costs as
    much for a part of a million values as for one of ten.
    """
    pulls = torch.zeros_like(shares)
    for _ in range(_ITERATIONS):
        towards = products @ pulls
        distances = (products.diagonal() - 2 * towards + pulls @ towards).clamp_min(0).sqrt()
        clipped = torch.where(distances > radius, radius / distances, 1.0) * shares
        step = clipped - clipped.sum() * pulls
        pulls += step
        if float(step @ products @ step) <= (_STILL * radius) ** 2:
            break
    return pulls
