"""Rotary angles for one text axis and two picture axes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig

# Where the text lies on the picture's axes, and the picture on the text's: far from anything real.
_PICTURE_ON_TEXT_AXIS = 8192.0
_TEXT_ON_PICTURE_AXES = -10.0


def rotary_angles(config: ModelConfig) -> Float[Tensor, "positions angles"]:
    """Return the angle of each pair of a head's entries at each position, in float32.

    Computed in float32 on purpose: at 8192 its rounding is part of the published model's function.
    Source: arXiv:2104.09864, laid out over text, rows and columns as in arXiv:2207.03481.
    """
    share = config.dim_head // 3
    count = share // 2
    text_frequency = 1.0 / 10000 ** (torch.arange(0, 2 * count, 2).float() / share)
    picture_frequency = torch.linspace(1.0, 5.0, count) * math.pi

    text = torch.full((config.text_part + config.image_length,), _PICTURE_ON_TEXT_AXIS)
    text[: config.text_part] = torch.arange(config.text_part).float()
    axis = torch.linspace(-1.0, 1.0, config.grid)
    before = torch.full((config.text_part,), _TEXT_ON_PICTURE_AXES)
    row = torch.cat([before, axis.repeat_interleave(config.grid)])
    column = torch.cat([before, axis.repeat(config.grid)])
    return torch.cat(
        [
            torch.outer(text, text_frequency),
            torch.outer(row, picture_frequency),
            torch.outer(column, picture_frequency),
        ],
        dim=1,
    )


class Rotary(nn.Module):
    """The turns of all positions, on the model's device, at full precision whatever precision the model has."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        angles = F.pad(rotary_angles(config), (0, config.dim_head // 2 - 3 * (config.dim_head // 6)))
        # Kept as the bits of float32, which .half() and .bfloat16() leave alone: those have no room for 8192 radians.
        self.register_buffer("bits", angles.view(torch.int32), persistent=False)

    def forward(self, dtype: torch.dtype) -> Float[Tensor, "positions pairs 2"]:
        """Return cosine and sine of the angles, for inputs of that precision; 1 and 0 for pairs that have no angle."""
        angles = self.bits.view(torch.float32).to(torch.promote_types(dtype, torch.float32))
        return torch.view_as_real(torch.polar(torch.ones_like(angles), angles))


def rotate(
    x: Float[Tensor, "batch seq head dim_head"], turns: Float[Tensor, "seq pairs 2"]
) -> Float[Tensor, "batch seq head dim_head"]:
    """Return `x` with each pair of neighbouring entries turned by the angle whose cosine and sine are in `turns`."""
    pairs, turns = x.to(turns.dtype).unflatten(-1, (-1, 2)), turns[:, None]
    if torch.compiler.is_compiling():  # a compiler makes one kernel of real numbers, and none of complex ones
        (a, b), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(turns))
    return turned.flatten(-2).to(x.dtype)
