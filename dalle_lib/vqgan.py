"""Codes as pictures."""

from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

PATCH = 8


class PatchCodebook:
    """The embedded run's codebook: each code is one patch of 8x8 pixels, the nearest in the least-squares sense.

    Codes made so depend on their own patch alone. With codes of a VQ-GAN whose encoder sees the whole picture, the
    embedded model never drew a combination of emoji and background that it had not seen.
    """

    def __init__(self, patches: Float[Tensor, "codes channels"]) -> None:
        self.patches = patches.float()

    @classmethod
    def from_file(cls, file: str | Path) -> "PatchCodebook":
        """Return the codebook of a safetensors file."""
        return cls(load_file(file)["patches"])

    def encode(self, pictures: UInt8[Tensor, "batch height width 3"]) -> Int[Tensor, "batch codes"]:
        """Return the code of each patch, row by row."""
        patches = to_patches(pictures)
        distances = self.patches.square().sum(1) - 2 * patches @ self.patches.T
        return distances.argmin(-1)

    def decode(self, codes: Int[Tensor, "batch codes"]) -> UInt8[Tensor, "batch height width 3"]:
        """Return the pictures, square, 8 pixels a code."""
        grid = round(codes.shape[1] ** 0.5)
        channels = self.patches[codes].transpose(1, 2).unflatten(2, (grid, grid))
        pictures = F.pixel_shuffle(channels, PATCH).permute(0, 2, 3, 1)
        return (pictures * 255).round().clamp(0, 255).to(torch.uint8)


def to_patches(pictures: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch codes channels"]:
    """Return each 8x8 patch as one vector of values from 0 to 1, in the channel order of `pixel_unshuffle`."""
    return F.pixel_unshuffle(pictures.permute(0, 3, 1, 2).float() / 255, PATCH).flatten(2).transpose(1, 2)
