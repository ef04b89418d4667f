"""What a block remembers while codes are drawn one by one: only what its attention and its shifts can still see."""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dalle_lib.model.attention import REACH, Heads, WholeRows
from dalle_lib.model.config import ModelConfig
from dalle_lib.model.transformer import Around

ROWS = REACH + 1
"""Rows of codes of which "convolution" attention sees any, its own included."""


def remembered_codes(kind: str, grid: int) -> int:
    """Return of how many codes a block remembers keys and values: a row, all columns, or the rows of a window."""
    return {"row": grid, "column": grid**2, "convolution": ROWS * grid}[kind]


def cache_bytes(config: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes remembered for each picture, and for each prompt, however many pictures are drawn of it."""
    heads = 2 * config.heads * config.dim_head  # keys and values
    codes = sum(remembered_codes(kind, config.grid) for kind in config.kinds) * heads
    shifts = config.depth * 2 * (config.grid + 1) * config.dim // 4
    return (codes + shifts) * dtype.itemsize, config.depth * heads * config.text_part * dtype.itemsize


@dataclass(frozen=True)
class Place:
    """For one kind of attention: in which slot a cell's key and value go, and which slots it sees.

    `of_all_cells` makes tables; `at` takes one cell's from them. The cell is a tensor and all shapes are the same, so
    that one recorded step can be replayed for every cell.
    """

    column: Int[Tensor, "cells"]
    slot: Int[Tensor, "cells"]
    line: Int[Tensor, "cells"]
    """The line of slots that is read, where there are several: the cell's column, in "column" attention."""
    hidden: Bool[Tensor, "cells slots"]
    """Which slots of that line hold nothing that the cell may see."""

    @classmethod
    def of_all_cells(cls, kind: str, grid: int, device: torch.device) -> "Place":
        """Return the tables of that kind of attention."""
        cell = torch.arange(grid**2, device=device)
        row, column = cell // grid, cell % grid
        if kind == "row":
            slot, line, later = column, 0 * cell, cell[:grid] > column[:, None]
        elif kind == "column":
            slot, line, later = column * grid + row, column, cell[:grid] > row[:, None]
        else:  # a ring of rows: each takes the place of the one that is out of sight
            slot, line = row % ROWS * grid + column, 0 * cell
            held = torch.arange(ROWS * grid, device=device)
            up = (row[:, None] - held // grid) % ROWS
            right = held % grid - column[:, None]
            later = (up > row[:, None]) | (right.abs() > REACH) | ((up == 0) & (right > 0))
        return cls(column, slot, line, later)

    def at(self, cell: Int[Tensor, "1"]) -> "Place":
        """Return one cell's."""
        return Place(*(getattr(self, name).index_select(0, cell) for name in self.__dataclass_fields__))


class ShiftCache:
    """The part of the last row, and of the last code, that token shift still moves."""

    def __init__(self, config: ModelConfig, pictures: int, like: Tensor) -> None:
        self.above = like.new_zeros(pictures, config.grid, config.dim // 4)
        self.left = like.new_zeros(pictures, 1, config.dim // 4)

    def fill(self, codes: Float[Tensor, "pictures codes dim"]) -> None:
        """Remember what is needed of the whole rows of codes that are given."""
        if codes.shape[1]:
            self.above.copy_(codes[:, -self.above.shape[1] :, : self.above.shape[2]])

    def shift(self, place: Place, x: Float[Tensor, "pictures 1 dim"]) -> Float[Tensor, "pictures 1 dim"]:
        """Return the next code's entries shifted as by `WholeRows.shift`, and remember them."""
        quarter = self.left.shape[-1]
        first, second, own = x.split([quarter, quarter, x.shape[-1] - 2 * quarter], dim=-1)
        above = self.above.index_select(1, place.column).to(x.dtype)
        left = (self.left * (place.column > 0)).to(x.dtype)
        self.above.index_copy_(1, place.column, first.to(self.above.dtype))
        self.left.copy_(second)
        return torch.cat([above, left, own], dim=-1)


class BlockCache:
    """The keys and values that one block can still see; those of the text once for all pictures of a prompt."""

    def __init__(self, kind: str, config: ModelConfig, prompts: int, samples: int, like: Tensor) -> None:
        self.kind, self.text_part, self.grid, self.samples = kind, config.text_part, config.grid, samples
        pictures, codes = prompts * samples, remembered_codes(kind, config.grid)
        self.text = like.new_zeros(2, prompts, config.heads, config.text_part, config.dim_head)
        self.codes = like.new_zeros(2, pictures, config.heads, codes, config.dim_head)
        self.shifts = tuple(ShiftCache(config, pictures, like) for _ in range(2))

    def around_given(self, sequence: WholeRows, which: Int[Tensor, "prompts"], place: Place) -> Around:
        """Return how the block sees distinct given sequences, all at once, and remember them on the way.

        `which` says for each prompt which of the sequences is its own, `place` is that of all cells.
        """

        def shift(cache: ShiftCache, x: Tensor) -> Tensor:
            cache.fill(x[which, self.text_part :].repeat_interleave(self.samples, 0))
            return sequence.shift(x)

        def attend(q: Heads, k: Heads, v: Heads) -> Heads:
            slots = place.slot[: q.shape[1] - self.text_part]
            for text, codes, x in zip(self.text, self.codes, (k, v), strict=True):
                x = x[which].transpose(1, 2)  # [prompts, head, seq, dim_head]
                text.copy_(x[:, :, : self.text_part])
                latest = x[:, :, self.text_part :][:, :, -codes.shape[2] :].repeat_interleave(self.samples, 0)
                codes.index_copy_(2, slots[-codes.shape[2] :], latest.to(codes.dtype))
            return sequence.attend(q, k, v)

        first, second = (partial(shift, cache) for cache in self.shifts)
        return Around(first, attend, second)

    def around_next(self, place: Place) -> Around:
        """Return how the block sees the code at `place`, one a picture, which follows what it remembers."""
        first, second = (partial(cache.shift, place) for cache in self.shifts)
        return Around(first, partial(self.attend, place), second)

    def attend(self, place: Place, q: Heads, k: Heads, v: Heads) -> Heads:
        """Return what the next code reads, one a picture, and remember its key and value."""
        dtype = v.dtype
        q, k, v = (x.transpose(1, 2).to(self.codes.dtype) for x in (q, k, v))  # [pictures, head, 1, dim_head]
        for cache, new in zip(self.codes, (k, v), strict=True):
            cache.index_copy_(2, place.slot, new)
        keys, values = self.codes
        if self.kind == "column":
            keys, values = (
                x.unflatten(2, (self.grid, self.grid)).index_select(2, place.line).squeeze(2) for x in self.codes
            )
        q = q * q.shape[-1] ** -0.5
        by_prompt = q.unflatten(0, (-1, self.samples)).squeeze(3).transpose(1, 2)  # [prompts, head, samples, dim_head]
        text = (by_prompt @ self.text[0].transpose(-1, -2)).transpose(1, 2).flatten(0, 1)  # [pictures, head, text]
        codes = (q @ keys.transpose(-1, -2)).squeeze(2).masked_fill(place.hidden, -torch.inf)
        weights = torch.cat([text, codes], dim=-1).softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32))
        text, codes = weights.to(q.dtype).split([text.shape[-1], codes.shape[-1]], dim=-1)
        by_prompt = text.unflatten(0, (-1, self.samples)).transpose(1, 2) @ self.text[1]
        read = by_prompt.transpose(1, 2).flatten(0, 1) + (codes[:, :, None] @ values).squeeze(2)
        return read[:, None].to(dtype)
