"""Which of many candidates to show: different pictures, each once, those first that CLIP prefers beyond its noise."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

SAME_LEVELS = 40.0
"""Difference of two pictures, of 255 levels, below which they are the same: that of the mean colours of the patch, an
eighth of a side wide, where these differ most; root mean square over red, green and blue. Fine details that differ all
over count little, a smudge at one place counts. Measured with the embedded run: among 32 candidates of each of 46
prompts, those that look the same differ by up to 40, a notch in the edge of one is 47. Encoding and decoding 800
training pictures once more changes half of them by less than 6 and 99 of 100 by less than 15; 99 of 100 are 45 or more
from the nearest other one, which is an orange background in place of a yellow one."""
PATCH, SIDE = 4, 32
"""A patch is PATCH x PATCH pixels of a picture that is scaled to SIDE pixels a side."""


@dataclass(frozen=True)
class Choice:
    """One of the different pictures among the candidates."""

    number: int
    """The candidate that stands for it: the one that differs least from the others of its kind, so no stray one."""
    count: int
    """Candidates that are this picture."""


def choose_best(
    scores: Float[Tensor, "candidates"] | None,
    pictures: UInt8[Tensor, "candidates height width 3"],
    count: int,
    noise: float = 0.0,
) -> list[Choice]:
    """Return at most `count` of the different pictures, best first, or the commonest first if `scores` are None.

    The picture with the higher score comes first; among those whose scores are less than `noise` below the highest one
    left, the picture comes first of which there are most.
    """
    if scores is None:
        scores, noise = torch.zeros(len(pictures)), math.inf
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
    patches = _patches(pictures)
    groups: dict[int, list[int]] = {}
    for number in scores.argsort(descending=True, stable=True).tolist():
        known = list(groups)
        distances = _differences(patches[known], patches[number])
        if known and float(distances.min()) < SAME_LEVELS:
            groups[known[int(distances.argmin())]].append(number)
        else:
            groups[number] = [number]
    choices = [Choice(members[_middle(patches[members])], len(members)) for members in groups.values()]
    return sorted(choices, key=lambda choice: float(scores[choice.number]), reverse=True)


def _middle(patches: Float[Tensor, "members 3 rows cols"]) -> int:
    """Return the place of the member that differs least from the others; the first one of several."""
    distances = torch.stack([_differences(patches, member).sum() for member in patches])
    return int((distances == distances.min()).nonzero()[0])


def _patches(pictures: UInt8[Tensor, "pictures height width 3"]) -> Float[Tensor, "pictures 3 rows cols"]:
    """Return the mean colours of all patches, from 0 to 255; see PATCH."""
    small = F.adaptive_avg_pool2d(pictures.permute(0, 3, 1, 2).float(), SIDE)
    return F.avg_pool2d(small, PATCH, stride=1)


def _differences(
    patches: Float[Tensor, "pictures 3 rows cols"], other: Float[Tensor, "3 rows cols"]
) -> Float[Tensor, "pictures"]:
    """Return how far each picture is from the other one: by the patch that differs most, in levels."""
    return (patches - other).square().mean(1).sqrt().amax((1, 2))
