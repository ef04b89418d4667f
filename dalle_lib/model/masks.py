"""Which position may attend to which."""

import torch
from jaxtyping import Bool
from torch import Tensor

from dalle_lib.model.config import ModelConfig

KINDS = ("row", "column", "convolution")


def attention_mask(kind: str, config: ModelConfig) -> Bool[Tensor, "seq seq"]:
    """Return which key positions (second axis) each query position may see.

    Text sees the text before it. A code sees all text, itself, and the codes before it in its row, in its column,
    or in the 5x5 window around it.
    Source: arXiv:1904.10509 (factorised attention), arXiv:2102.12092 appendix B; the window is centred.
    """
    if kind not in KINDS:
        raise ValueError(f"attention kind must be one of {KINDS}, but is {kind!r}.")
    position = torch.arange(config.length)
    causal = position[None] <= position[:, None]
    cell = position - config.text_part
    row, column = cell // config.grid, cell % config.grid
    rows_apart = (row[None] - row[:, None]).abs()
    columns_apart = (column[None] - column[:, None]).abs()
    near = {
        "row": rows_apart == 0,
        "column": columns_apart == 0,
        "convolution": (rows_apart <= 2) & (columns_apart <= 2),
    }[kind]
    key_is_text = (cell < 0)[None].expand_as(causal)
    return causal & (key_is_text | near)
