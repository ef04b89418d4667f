"""What is believed of a peer's claims: limits on its weight, and reasons to refuse its part."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

FAR = 10.0
"""Norm of a part that does not count, in multiples of the median part's norm. No honest part is that long: one of a
hundredth of the samples has ten times the noise."""

LEAST = 1e-9
"""The least weight but zero. With two users, the other's weights are lowered to it, and float32 ends at 1e-45."""


def capped(weights: Float[Tensor, " peers"], ratio: float = 4.0) -> Float[Tensor, " peers"]:
    """Return the weights, none above `ratio` times the median of the positive ones (the lower of two in the middle).

    ``c[i] = min(w[i], ratio * median{w[k] : w[k] > 0})``

    Weights are what peers say of themselves, so one claim must not decide. Raise `ratio` where honest peers' speeds
    differ by more: samples that a fast peer computes beyond it do not count.

    Raises ValueError if a weight is negative or not finite, or if all are zero.
    """
    require_weights(weights)
    return weights.clamp(max=ratio * float(weights[weights > 0].median()))


def without_far(parts: Float[Tensor, "peers values"], weights: Float[Tensor, " peers"]) -> Float[Tensor, " peers"]:
    """Return the weights, with zero for parts more than `FAR` times as long as the weighted median one.

    ``c[i] = w[i] if norm(x[i]) <= FAR * median{norm(x[k])} else 0``

    A rule that outvotes liars still gives way to them as far as to an honest peer at the edge; a part that is plainly
    a lie is better left out. Fewer than three peers, and a median of zero, leave the weights as they are.

    Raises ValueError as `capped` does.
    """
    require_weights(weights)
    lengths = parts.float().norm(dim=1)
    present = weights > 0
    median = lower_median(lengths[present], (weights / weights.sum())[present])
    return weights if present.sum() < 3 or median == 0 else weights.where(lengths <= FAR * median, 0.0)


def capped_by_user(weights: Float[Tensor, " peers"], users: Sequence[str], share: float) -> Float[Tensor, " peers"]:
    """Return the weights, each user's scaled down to at most `share` of the sum of all that is returned.

    With T[u] the sum of user u's weights, ``c[i] = w[i] * min(1, L / T[user of i])``, where the limit L solves
    ``L = share * sum_u min(T[u], L)``. `users` names the user of each peer; a user's peers keep their proportions.

    If there are too few users with samples for such a limit (a user alone, two with shares below a half), their sums
    become equal. Weights that are all zero, and a share of 1 or more, change nothing.
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
    """Return the largest weight of a user that is at most `share` of the sum of all users' weights so limited."""
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
    if not bool(part.bfloat16().isfinite().all()):  # an average of larger ones could not be sent
        return "it holds NaN, infinity, or values beyond bfloat16"
    return None


def weight_problem(weight: float) -> str | None:
    """Return why a part cannot count with `weight`, or None if it can."""
    if math.isfinite(weight) and (weight == 0 or weight >= LEAST):
        return None
    return f"its weight is {weight}, but 0 or a finite number of at least {LEAST:g} was expected"


def require_weights(weights: Float[Tensor, " peers"]) -> None:
    """Raise ValueError if a weight is negative or not finite, or if all are zero."""
    if not (bool((weights >= 0).all()) and 0 < float(weights.double().sum()) < math.inf):
        raise ValueError(
            f"expected finite weights of at least 0, one of them positive, but got {weights.tolist()}: leave out peers "
            f"for which weight_problem gives a reason, and do not average what nobody computed."
        )


def lower_median(values: Float[Tensor, " peers"], shares: Float[Tensor, " peers"]) -> float:
    """Return the least value that, together with all below it, has half of the weight. `shares` sum to one."""
    order = values.argsort()
    return float(values[order][shares[order].cumsum(0) >= 0.5 - 1e-9][0])
