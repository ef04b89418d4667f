"""Which of many candidates to show: different pictures, each once, those first that CLIP prefers beyond its noise."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

SAME_LEVELS = 7.0
"""Root mean square difference of two pictures, of 255 levels and at SAME_SIDE pixels a side, below which they are the
same. Measured on 800 training pictures of the embedded run: encoding and decoding a picture once more changes 99 of 100
by less than 4.8 (half of them by less than 1.7); 99 of 100 are 18 or more from the nearest other one."""
SAME_SIDE = 16


@dataclass(frozen=True)
class Choice:
    """One of the different pictures among the candidates."""

    number: int
    """The candidate that stands for it: the one that differs least from the others of its kind, so no stray one."""
    count: int
    """Candidates that are this picture."""


def choose_best(
    scores: Float[Tensor, "candidates"],
    pictures: UInt8[Tensor, "candidates height width 3"],
    count: int,
    noise: float = 0.0,
) -> list[Choice]:
    """Return at most `count` of the different pictures, best first.

    The picture with the higher score comes first; among those whose scores are less than `noise` below the highest one
    left, the picture comes first of which there are most.
    """
    left, ordered = different(scores, pictures), []
    while left and len(ordered) < count:
        highest = scores[left[0].number]
        close = [left[0], *(choice for choice in left[1:] if highest - scores[choice.number] < noise)]
        ordered.append(max(close, key=lambda choice: choice.count))
        left.remove(ordered[-1])
    return ordered


def different(
    scores: Float[Tensor, "candidates"], pictures: UInt8[Tensor, "candidates height width 3"]
) -> list[Choice]:
    """Return the different pictures, those with higher scores first; see SAME_LEVELS."""
    small = F.adaptive_avg_pool2d(pictures.permute(0, 3, 1, 2).float(), SAME_SIDE).flatten(1)
    groups: dict[int, list[int]] = {}
    for number in scores.argsort(descending=True, stable=True).tolist():
        known = list(groups)
        distances = (small[known] - small[number]).square().mean(1).sqrt() if known else torch.empty(0)
        if len(distances) and float(distances.min()) < SAME_LEVELS:
            groups[known[int(distances.argmin())]].append(number)
        else:
            groups[number] = [number]
    choices = [Choice(_middle(small, members), len(members)) for members in groups.values()]
    return sorted(choices, key=lambda choice: float(scores[choice.number]), reverse=True)


def _middle(small: Float[Tensor, "candidates pixels"], members: list[int]) -> int:
    """Return the member that differs least from the others; the first one of several."""
    distances = torch.cdist(small[members], small[members], compute_mode="donot_use_mm_for_euclid_dist").sum(1)
    return members[int((distances == distances.min()).nonzero()[0])]
