"""A strict measure of drawn emoji: background, colour and shape, each by pixels, as close as the VQ-GAN's copies."""

from dataclasses import dataclass

import numpy as np
import torch
from emoji_pictures import Picture
from torch import Tensor
from torch.nn import functional as F

MEASURES = ("background", "colour", "shape")
BLOCK = 4
"""Pixels on the side of the squares over which colours are averaged before they are compared."""
KEPT = 0.99
"""Share of the true pictures whose copies keep the allowed distance."""
TO_YCC = torch.tensor([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
"""Luminance and the two colour differences of red, green and blue (ITU-R BT.601)."""


@dataclass(frozen=True)
class Limits:
    """The distance in each of `MEASURES` beyond which a picture is wrong, from 0 to 1."""

    values: Tensor

    @classmethod
    def of_copies(cls, copies: Tensor, pictures: list[Picture]) -> "Limits":
        """Return the distances that 99 of 100 `copies` [pictures, 64, 64, 3] keep from their true pictures."""
        return cls(distances(copies, pictures).nan_to_num(0).quantile(KEPT, dim=0))

    def kept(self, drawn: Tensor, pictures: list[Picture]) -> Tensor:
        """Return which of the `MEASURES` each drawn picture keeps, [pictures, 3]; all three make it right."""
        return ~(distances(drawn, pictures) > self.values)


def distances(drawn: Tensor, pictures: list[Picture]) -> Tensor:
    """Return how far drawn pictures [pictures, 64, 64, 3] are from the true ones in each of `MEASURES`, [pictures, 3].

    Each is a root mean square from 0 to 1: of all three channels where the true picture is background; of the colour
    differences, averaged over squares, where it is not; of the luminance, where it is not. What sticks out of the true
    shape is counted in the background, what is missing in colour or luminance. NaN where there is no such pixel.
    """
    true = torch.from_numpy(np.stack([picture.pixels for picture in pictures]))
    alpha = torch.from_numpy(np.stack([picture.alpha for picture in pictures])).float() / 255
    error = (drawn.float() - true.float()) / 255
    ycc = error @ TO_YCC.T
    covered = F.avg_pool2d(alpha[:, None], BLOCK)
    colours = F.avg_pool2d(ycc[..., 1:].permute(0, 3, 1, 2) * alpha[:, None], BLOCK) / covered.clamp(min=1e-6)
    return torch.stack(
        [
            root_mean_square(error.square().mean(-1), (alpha == 0).float()),
            root_mean_square(colours.square().sum(1), covered[:, 0]),
            root_mean_square(ycc[..., 0].square(), alpha),
        ],
        dim=1,
    )


def root_mean_square(squares: Tensor, weights: Tensor) -> Tensor:
    """Return the root of the weighted mean of `squares` [pictures, height, width]."""
    return ((squares * weights).sum((1, 2)) / weights.sum((1, 2))).sqrt()
