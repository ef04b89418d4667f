"""The rules by which a run can merge the parts of its peers."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dalle_lib.aggregation.claims import lower_median, require_weights
from dalle_lib.aggregation.middle import chunks, middle

CUT = 0.25
"""Share of the weight that `trimmed_mean` cuts off at each end."""
_MAX_ITERATIONS, _STILL = 20, 1e-6
"""Clipping is repeated this often at most, or until the centre moves by less than this share of the radius."""


def mean(parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]) -> Float[Tensor, " values"]:
    """Return the weighted mean of each value.

    ``m[j] = sum_i w[i] x[i, j] / W``

    Raises ValueError if a weight is negative or not finite, or if all are zero.
    """
    parts, weights = _present(parts, weights)
    return (weights / weights.sum()).float() @ parts.float()


def coordinate_median(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]
) -> Float[Tensor, " values"]:
    """Return the weighted median of each value; the middle of two where each side has half of the weight.

    ``m[j] = (lower + upper) / 2``, where ``lower`` is the least ``x[k, j]`` for which the peers with values up to it
    have at least ``W / 2`` of the weight, and ``upper`` the least for which they have more. With positive weights the
    same, written plainly::

        def coordinate_median(parts, weights):
            if len(parts) < 3:
                return mean(parts, weights)
            medians = []
            for column in parts.T:
                values, order = column.sort()
                upto = weights[order].cumsum(0)
                lower, upper = values[upto >= upto[-1] / 2][0], values[upto > upto[-1] / 2][0]
                medians.append((lower + upper) / 2)
            return torch.stack(medians)

    Raises ValueError as `mean` does.

    Source: arXiv:1803.01498 (coordinate-wise median); weights are this kit's.
    """
    parts, weights = _present(parts, weights)
    return mean(parts, weights) if len(parts) < 3 else middle(parts, weights, 0.5)


def trimmed_mean(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], cut: float = CUT
) -> Float[Tensor, " values"]:
    """Return the weighted mean of each value without the largest and the smallest, `cut` of the weight at each end.

    ``m[j] = sum_k x[k, j] kept[k] / sum_k kept[k]``, over the peers in the order of their values. With c the larger of
    `cut` and ``max_i w[i] / W``, ``kept[k]`` is the length of what peer k's stretch of the weight, from
    ``sum of w[l] / W over l < k`` on, shares with the interval from c to 1 - c. A peer on the edge thus counts with the
    rest of its weight. Each end loses at least the heaviest peer's weight, or a
    quarter would not outvote one liar of three;
    where that is half of the weight, the median is left. With positive weights the same, written plainly::

        def trimmed_mean(parts, weights, cut=CUT):
            if len(parts) < 3:
                return mean(parts, weights)
            shares = weights / weights.sum()
            cut = max(cut, float(shares.max()))
            if cut >= 0.5:
                return coordinate_median(parts, weights)
            means = []
            for column in parts.T:
                values, order = column.sort()
                upto = shares[order].cumsum(0).clamp(cut, 1 - cut)
                kept = upto.diff(prepend=upto.new_tensor([cut]))
                means.append((values * kept).sum() / (1 - 2 * cut))
            return torch.stack(means)

    Raises ValueError as `mean` does, and if `cut` is not in [0, 0.5].

    Source: arXiv:1803.01498 (coordinate-wise trimmed mean); weights, and the least that is cut, are this kit's.
    """
    if not 0 <= cut <= 0.5:
        raise ValueError(f"expected to cut between 0 and 0.5 of the weight at each end, but got {cut}.")
    parts, weights = _present(parts, weights)
    return mean(parts, weights) if len(parts) < 3 else middle(parts, weights, cut)


def centered_clip(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"], radius: float | None = None
) -> Float[Tensor, " values"]:
    """Return the centre from which all parts, each pulling no harder than from `radius` away, pull evenly.

    The centre v is the limit of ``v <- v + sum_i (w[i] / W) (x[i] - v) min(1, radius / norm(x[i] - v))``, which starts
    at the coordinate-wise median. Unless given, the radius is the weighted median of the parts' distances to that
    start, the lower of two in the middle. With positive weights the same, written plainly::

        def centered_clip(parts, weights, radius=None):
            if len(parts) < 3:
                return mean(parts, weights)
            shares, centre = weights / weights.sum(), coordinate_median(parts, weights)
            if radius is None:
                radius = lower_median((parts - centre).norm(dim=1), shares)
            for _ in range(20):
                offsets = parts - centre
                clips = (radius / offsets.norm(dim=1)).clamp(max=1.0)
                centre = centre + (shares * clips) @ offsets
            return centre

    Raises ValueError as `mean` does, and for a negative radius.

    Source: arXiv:2012.10333; the start and the radius are this kit's.
    """
    if radius is not None and not radius >= 0:
        raise ValueError(f"expected a radius of at least 0, or None to take the median distance, but got {radius}.")
    parts, weights = _present(parts, weights)
    if len(parts) < 3:
        return mean(parts, weights)
    start, shares = middle(parts, weights, 0.5), weights / weights.sum()
    products = _products(parts, start)
    if radius is None:
        radius = lower_median(products.diagonal().sqrt(), shares)
    pulls = _pulls(products, shares, radius)
    return (1 - pulls.sum()).float() * start + pulls.float() @ parts.float()


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean,
    "centered_clip": centered_clip,
    "coordinate_median": coordinate_median,
    "trimmed_mean": trimmed_mean,
}
"""The rules that a run can choose, by name."""


def _present(
    parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]
) -> tuple[Float[Tensor, "present values"], Float[Tensor, " present"]]:
    """Return the parts whose weight is positive, and their weights in float64."""
    require_weights(weights)
    is_present = weights > 0
    return (parts if bool(is_present.all()) else parts[is_present]), weights[is_present].double()


def _products(parts: Float[Tensor, "peers values"], start: Float[Tensor, " values"]) -> Float[Tensor, "peers peers"]:
    """Return the inner products of the parts' offsets from `start`, in float64."""
    products = torch.zeros(len(parts), len(parts), dtype=torch.float64, device=parts.device)
    for place, chunk in chunks(parts):
        offsets = chunk.sub_(start[place])
        products.addmm_(offsets, offsets.T)
    return products


def _pulls(
    products: Float[Tensor, "peers peers"], shares: Float[Tensor, " peers"], radius: float
) -> Float[Tensor, " peers"]:
    """Return the coefficient of each part's offset from the start in ``centre = start + sum_i pull[i] offset[i]``.

    The centre never leaves the span of the offsets, so iterations need only these few coefficients and the offsets'
    inner products: ``norm(offset[i] - sum_k pull[k] offset[k])^2`` is a quadratic form of them. An iteration costs as
    much for a part of a million values as for one of ten.
    """
    pulls = torch.zeros_like(shares)
    for _ in range(_MAX_ITERATIONS):
        towards = products @ pulls
        distances = (products.diagonal() - 2 * towards + pulls @ towards).clamp_min(0).sqrt()
        clipped = torch.where(distances > radius, radius / distances, 1.0) * shares
        step = clipped - clipped.sum() * pulls
        pulls += step
        if float(step @ products @ step) <= (_STILL * radius) ** 2:
            break
    return pulls
