"""What a block remembers while codes are drawn one by one: only what later codes can still see.

Pictures = prompts x samples, those of a prompt side by side. For each block there are kept

- keys and values of the text part, once for all pictures of a prompt: [2, prompt, head, text, dim_head];
- keys and values of codes, in slots: [2, picture, head, slot, dim_head]. Which slot a cell (row, col) has, and which it
  sees, is in `SlotTable`:

  ============= ================= ======================= ==========================================
  attention     slots             slot of a cell          slots that hold what the cell sees
  ============= ================= ======================= ==========================================
  "row"         grid              col                     0 to col
  "column"      grid x grid       col x grid + row        col x grid to col x grid + row
  "convolution" ROWS x grid       row mod ROWS x grid     those of cells in its window: the rows are
                                  + col                   a ring, in which the newest replaces the oldest
  ============= ================= ======================= ==========================================

- for token shift, in front of the attention and of the feed-forward layer: a quarter of the entries of the last `grid`
  codes, [picture, grid, dim / 4], and another quarter of the last code's, [picture, 1, dim / 4].

What is drawn from this is what `model.attention` computes for whole sequences; the tests hold them against each other.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dalle_lib.model.attention import REACH, Heads, WholeRows
from dalle_lib.model.config import ModelConfig
from dalle_lib.model.dalle import Mixing

ROWS = REACH + 1
"""Rows of which a code sees any cells in "convolution" attention, its own row included."""


def slot_count(kind: str, grid: int) -> int:
    """Return for how many codes a block of this kind keeps keys and values."""
    return {"row": grid, "column": grid**2, "convolution": ROWS * grid}[kind]


def cache_bytes(config: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes that are kept for each picture, and for each prompt, however many pictures are drawn of it."""
    heads = 2 * config.heads * config.dim_head  # keys and values
    codes = sum(slot_count(kind, config.grid) for kind in config.kinds) * heads
    shifts = config.depth * 2 * (config.grid + 1) * config.dim // 4
    return (codes + shifts) * dtype.itemsize, config.depth * heads * config.text_part * dtype.itemsize


@dataclass(frozen=True)
class Slot:
    """Where one cell's key and value are kept, and which slots it sees: one cell's entries of a `SlotTable`."""

    col: Int[Tensor, "1"]
    """The cell's column in the grid."""
    slot: Int[Tensor, "1"]
    line: Int[Tensor, "1"]
    """In "column" attention, which line of `grid` slots the cell reads; else 0, as all slots are one line."""
    is_hidden: Bool[Tensor, "1 slot"]
    """Which slots of the line hold no code that the cell sees."""


class SlotTable:
    """The slots of all cells of a grid in one kind of attention; entry i of each tensor is cell i's.

    A cell is looked up by a tensor, and all cells' entries have the same shapes: one recorded step serves every cell.
    """

    def __init__(self, kind: str, grid: int, device: torch.device) -> None:
        cell = torch.arange(grid**2, device=device)
        row, self.col = cell // grid, cell % grid
        place = cell[:grid]  # in a line
        if kind == "row":
            self.slot, self.line = self.col, 0 * cell
            self.is_hidden = place > self.col[:, None]
        elif kind == "column":
            self.slot, self.line = self.col * grid + row, self.col
            self.is_hidden = place > row[:, None]
        else:
            self.slot, self.line = row % ROWS * grid + self.col, 0 * cell
            held = torch.arange(ROWS * grid, device=device)
            up = (row[:, None] - held // grid) % ROWS
            right = held % grid - self.col[:, None]
            is_later = (up == 0) & (right > 0)
            is_above_grid = up > row[:, None]
            self.is_hidden = is_later | is_above_grid | (right.abs() > REACH)

    def at(self, cell: Int[Tensor, "1"]) -> Slot:
        """Return the entries of one cell."""
        return Slot(*(table.index_select(0, cell) for table in (self.col, self.slot, self.line, self.is_hidden)))


class ShiftCache:
    """The entries of the last row, and of the last code, that token shift still has to move.

    `above` [picture, grid, dim / 4] are the first quarters of the last `grid` codes, by column; `left` [picture, 1,
    dim / 4] is the second quarter of the last code.
    """

    def __init__(self, config: ModelConfig, pictures: int, like: Tensor) -> None:
        self.above = like.new_zeros(pictures, config.grid, config.dim // 4)
        self.left = like.new_zeros(pictures, 1, config.dim // 4)

    def fill(self, codes: Float[Tensor, "picture code dim"]) -> None:
        """Remember what is needed of given codes, which are whole rows; the next code has nothing to its left."""
        if codes.shape[1]:
            self.above.copy_(codes[:, -self.above.shape[1] :, : self.above.shape[2]])

    def shift(self, slot: Slot, x: Float[Tensor, "picture 1 dim"]) -> Float[Tensor, "picture 1 dim"]:
        """Return the next code's entries after token shift, as `WholeRows.shift` does it, and remember them."""
        quarter = self.left.shape[-1]
        first, second, own = x.split([quarter, quarter, x.shape[-1] - 2 * quarter], dim=-1)
        above = self.above.index_select(1, slot.col).to(x.dtype)
        left = (self.left * (slot.col > 0)).to(x.dtype)
        self.above.index_copy_(1, slot.col, first.to(self.above.dtype))
        self.left.copy_(second)
        return torch.cat([above, left, own], dim=-1)


class BlockCache:
    """What one block remembers of all pictures; shapes and slots are described at the top of this file.

    `mix_given` and `mix_next` give the functions with which the block runs (`Transformer.forward_with`); they remember
    what they are given.
    """

    def __init__(self, kind: str, config: ModelConfig, prompts: int, samples: int, like: Tensor) -> None:
        self.kind, self.text_part, self.grid, self.samples = kind, config.text_part, config.grid, samples
        pictures, slots = prompts * samples, slot_count(kind, config.grid)
        self.text = like.new_zeros(2, prompts, config.heads, config.text_part, config.dim_head)
        self.codes = like.new_zeros(2, pictures, config.heads, slots, config.dim_head)
        self.shifts = tuple(ShiftCache(config, pictures, like) for _ in range(2))

    def mix_given(self, rows: WholeRows, which: Int[Tensor, "prompt"], table: SlotTable) -> Mixing:
        """Return how the block sees given sequences, all positions at once.

        No two of the sequences are equal; `which` says for each prompt which of them is its own.
        """

        def shift(cache: ShiftCache, x: Float[Tensor, "sequence seq dim"]) -> Tensor:
            cache.fill(x[which, self.text_part :].repeat_interleave(self.samples, 0))
            return rows.shift(x)

        def attend(q: Heads, k: Heads, v: Heads) -> Heads:
            self._remember_given(table, k[which], v[which])
            return rows.attend(q, k, v)

        first, second = (partial(shift, cache) for cache in self.shifts)
        return Mixing(first, attend, second)

    def mix_next(self, slot: Slot) -> Mixing:
        """Return how the block sees the next code of each picture, whose cell is that of `slot`."""
        first, second = (partial(cache.shift, slot) for cache in self.shifts)
        return Mixing(first, partial(self._attend_next, slot), second)

    def _remember_given(self, table: SlotTable, *keys_and_values: Float[Tensor, "prompt seq head dim_head"]) -> None:
        for text, codes, x in zip(self.text, self.codes, keys_and_values, strict=True):
            given_text, given_codes = x.transpose(1, 2).tensor_split([self.text_part], dim=2)
            text.copy_(given_text)
            given, kept = given_codes.shape[2], min(given_codes.shape[2], codes.shape[2])
            latest = given_codes[:, :, given - kept :].repeat_interleave(self.samples, 0)
            codes.index_copy_(2, table.slot[given - kept : given], latest.to(codes.dtype))

    def _attend_next(self, slot: Slot, q: Heads, k: Heads, v: Heads) -> Heads:
        """Return what the next code of each picture reads; all three are [picture, 1, head, dim_head].

        The softmax runs jointly over the text, whose scores are one product for all pictures of a prompt, and codes.
        """
        for cache, new in zip(self.codes, (k, v), strict=True):
            cache.index_copy_(2, slot.slot, new.transpose(1, 2).to(cache.dtype))
        keys, values = (self._line(cache, slot) for cache in self.codes)  # [picture, head, slot, dim_head]
        text_keys, text_values = self.text
        q = q[:, 0].to(keys.dtype) * q.shape[-1] ** -0.5  # [picture, head, dim_head]
        text_scores = self._by_picture(self._by_prompt(q) @ text_keys.transpose(-1, -2))  # [picture, head, text]
        code_scores = (q[:, :, None] @ keys.transpose(-1, -2)).squeeze(2)  # [picture, head, slot]
        scores = torch.cat([text_scores, code_scores.masked_fill(slot.is_hidden, -torch.inf)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        text_weights, code_weights = weights.tensor_split([text_keys.shape[2]], dim=-1)
        text_read = self._by_picture(self._by_prompt(text_weights) @ text_values)  # [picture, head, dim_head]
        code_read = (code_weights[:, :, None] @ values).squeeze(2)
        return (text_read + code_read)[:, None].to(v.dtype)

    def _line(self, cache: Float[Tensor, "picture head slots dim_head"], slot: Slot) -> Tensor:
        """Return the line of slots that a cell reads."""
        if self.kind != "column":
            return cache
        return cache.unflatten(2, (self.grid, self.grid)).index_select(2, slot.line).squeeze(2)

    def _by_prompt(self, x: Float[Tensor, "picture head entry"]) -> Float[Tensor, "prompt head sample entry"]:
        return x.unflatten(0, (-1, self.samples)).transpose(1, 2)

    def _by_picture(self, x: Float[Tensor, "prompt head sample entry"]) -> Float[Tensor, "picture head entry"]:
        return x.transpose(1, 2).flatten(0, 1)
