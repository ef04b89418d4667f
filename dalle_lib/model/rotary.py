"""Rotary position embedding with three axes: position in the text, row of the picture, column of the picture."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig

# Where codes are on the axis of the text, and text on those of the picture: far from every real position.
_PICTURE_ON_TEXT_AXIS = 8192.0
_TEXT_ON_PICTURE_AXES = -10.0


def rotary_angles(config: ModelConfig) -> Float[Tensor, "seq pairs"]:
    """Return the angle in radians of each pair of a head's entries at each position, in float32.

    Each axis has m = (dim_head // 3) // 2 pairs; for k from 0 to m - 1 their angles are::

        text     position x 10000 ** (-2 k / (dim_head // 3))
        row      u x pi x (1 + 4 k / (m - 1)), where u goes from -1 in the first row to 1 in the last
        column   the same with columns

    The rest of a head's entries is not rotated and has no angle here. The text axis is computed in float32 on purpose:
    its rounding, where codes are, is part of the published model's function.
    Source: arXiv:2104.09864, with the three axes of arXiv:2207.03481.
    """
    share = config.dim_head // 3
    count = share // 2
    text_frequency = 1.0 / 10000 ** (torch.arange(0, 2 * count, 2).float() / share)
    text = torch.full((config.text_part + config.image_length,), _PICTURE_ON_TEXT_AXIS)
    text[: config.text_part] = torch.arange(config.text_part).float()
    # The device is named because linspace forgets that of `with torch.device(...)` once transformers has made a model.
    picture_frequency = torch.linspace(1.0, 5.0, count, device=text.device) * math.pi
    axis = torch.linspace(-1.0, 1.0, config.grid, device=text.device)
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
    """Cosine and sine of all angles, on the model's device, in full precision whatever the model's precision is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        angles = F.pad(rotary_angles(config), (0, config.dim_head // 2 - 3 * (config.dim_head // 6)))
        # .half() and .bfloat16() round floating-point buffers, and 8192 radians would lose their fraction. They leave
        # integers alone, so the bits of float32 are stored.
        self.register_buffer("bits", angles.view(torch.int32), persistent=False)

    def forward(self, dtype: torch.dtype) -> Float[Tensor, "seq pairs 2"]:
        """Return cosine and sine of the angles, 1 and 0 for pairs without an angle, for heads in `dtype`."""
        angles = self.bits.view(torch.float32).to(torch.promote_types(dtype, torch.float32))
        return torch.view_as_real(torch.polar(torch.ones_like(angles), angles))


def rotate(
    x: Float[Tensor, "batch seq head dim_head"], turns: Float[Tensor, "seq pairs 2"]
) -> Float[Tensor, "batch seq head dim_head"]:
    """Return `x` with each pair (a, b) of neighbouring entries rotated: (a cos - b sin, a sin + b cos).

    `turns` holds the cosine and the sine for each position and pair; all heads have the same.
    """
    pairs, turns = x.to(turns.dtype).unflatten(-1, (-1, 2)), turns[:, None]
    if torch.compiler.is_compiling():  # compilers make no kernels of complex numbers
        (a, b), (cos, sin) = pairs.unbind(-1), turns.unbind(-1)
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(turns))
    return turned.flatten(-2).to(x.dtype)
