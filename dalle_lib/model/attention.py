"""Which positions see each other: three kinds of sparse attention, and token shift.

A sequence is the text part (the start token and the caption's text tokens), then the codes, row by row; a code is a
cell of the grid. Text attends to the text up to itself. A code attends to all of the text and to itself and those codes
before it that are near:

- "row": the codes in its row;
- "column": the codes in its column;
- "convolution": the codes at most `REACH` rows above it and at most `REACH` columns to its left or right.

`WholeRows` does this for all positions at once, in training and for the rows that a picture starts with;
`model.cache` does it for one code after the other, in drawing.
Sources: arXiv:1904.10509 (factorised attention), arXiv:2102.12092, appendix B (rows, columns, windows).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig

REACH = 2
"""Rows above, and columns to either side, that a code sees in "convolution" attention."""

STRIP = 64
"""Maximum number of codes in a strip of several lines; a longer line is a strip by itself.

Longer strips copy the text's keys and values less often, but compute more scores that the mask throws away.
"""

Heads = Float[Tensor, "batch seq head dim_head"]
Strips = Float[Tensor, "batch strip key head dim_head"]


class WholeRows:
    """Attention of one kind, and token shift, for sequences of the text part and then of whole rows of codes.

    No matrix of all positions by all positions is built. Codes are ordered line by line: a line is a column of the grid
    in "column" attention, and a row in the other two. Lines that follow each other make a strip, and each strip attends
    as an entry of a batch::

        queries  [batch x strip, code, head, dim_head]   the strip's codes
        keys     [batch x strip, key, head, dim_head]    the whole text part, then in "convolution" attention the
                                                         REACH rows above the strip, then the strip's codes
        mask     [code, key]                             in "convolution" attention another one for each strip

    Attributes: `line`, `strip` and `above` count the codes of a line, of a strip, and above a strip among its keys.
    """

    def __init__(self, kind: str, config: ModelConfig, rows: int, device: torch.device) -> None:
        self.kind, self.text_part, self.grid, self.rows = kind, config.text_part, config.grid, rows
        lines, self.line = (config.grid, rows) if kind == "column" else (rows, config.grid)
        self.strip = self.line * _lines_in_strip(lines, self.line)
        self.above = REACH * self.line if kind == "convolution" else 0
        self.mask = self._mask(device)
        cell = torch.arange(-self.text_part, rows * self.grid, device=device)
        self.starts_row = ((cell >= 0) & (cell % self.grid == 0))[:, None]  # [seq, 1]

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Return what each position reads. A code's softmax runs over text and codes jointly.

        The same, with a dense mask::

            def attend_densely(kind, q, k, v, text_part, grid):
                position = torch.arange(q.shape[1])
                row, col = (position - text_part) // grid, (position - text_part) % grid
                up, left = row[:, None] - row, col[:, None] - col  # of a query (first axis) from a key (second axis)
                is_near = {
                    "row": up == 0,
                    "column": left == 0,
                    "convolution": (up <= REACH) & (left.abs() <= REACH),
                }[kind]
                is_seen = (position <= position[:, None]) & ((position < text_part) | is_near)
                scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
                weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
                return torch.einsum("bhqk,bkhd->bqhd", weights, v)
        """
        (text_q, code_q), (text_k, code_k), (text_v, code_v) = (self._text_and_codes(x) for x in (q, k, v))
        text_read = attend(text_q, text_k, text_v, is_causal=True)
        if not self.rows:
            return text_read
        q = self._line_by_line(code_q).unflatten(1, (-1, self.strip))  # [batch, strip, code, head, dim_head]
        k, v = self._keys(text_k, code_k), self._keys(text_v, code_v)
        mask = self.mask if self.mask.ndim == 2 else self.mask.repeat(len(q), 1, 1, 1)
        read = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask)
        code_read = self._row_by_row(read.unflatten(0, q.shape[:2]).flatten(1, 2))
        return torch.cat([text_read, code_read], dim=1)

    def shift(self, x: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """Return `x` after token shift: the first half of each position's entries comes from its neighbours.

        A text position takes its first half from the position before. A code takes its first quarter from the code
        above and its second quarter from the code to the left. Where there is no such neighbour, entries are zero.
        """
        quarter = x.shape[-1] // 4
        first, second, own = x.split([quarter, quarter, 2 * quarter], dim=-1)
        text, codes = self._text_and_codes(first)
        first = torch.cat([_later(text, 1), _later(codes, self.grid)], dim=1)
        second = _later(second, 1).masked_fill(self.starts_row, 0.0)
        return torch.cat([first, second, own], dim=-1)

    def _text_and_codes(self, x: Float[Tensor, "batch seq *rest"]) -> tuple[Tensor, ...]:
        return x.split([self.text_part, x.shape[1] - self.text_part], dim=1)

    def _line_by_line(self, codes: Heads) -> Heads:
        """Return codes, which come row by row, in the order of lines."""
        return _transposed(codes, self.rows) if self.kind == "column" else codes

    def _row_by_row(self, codes: Heads) -> Heads:
        """Return codes, which come line by line, in the order of rows."""
        return _transposed(codes, self.grid) if self.kind == "column" else codes

    def _keys(self, text: Heads, codes: Float[Tensor, "batch code head dim_head"]) -> Strips:
        """Return the keys, or the values, of each strip: those of the text part, of codes above it, and of its own."""
        if self.kind == "convolution":
            padded = F.pad(codes, (0, 0, 0, 0, self.above, 0))
            near = padded.unfold(1, self.above + self.strip, self.strip).movedim(-1, 2)
        else:
            near = self._line_by_line(codes).unflatten(1, (-1, self.strip))
        return torch.cat([text[:, None].expand(-1, near.shape[1], -1, -1, -1), near], dim=2)

    def _mask(self, device: torch.device) -> Bool[Tensor, "*strip_1 code key"]:
        """Return which of its strip's keys each code sees; masks differ from strip to strip in "convolution" attention.

        Codes and keys are counted from the strip's first code, so that keys above the strip have negative numbers.
        """
        code = torch.arange(self.strip, device=device)[:, None]
        key = torch.arange(-self.above, self.strip, device=device)
        up, left = code // self.line - key // self.line, code % self.line - key % self.line
        is_seen = key <= code
        if self.kind == "convolution":
            start = torch.arange(0, self.rows * self.grid, self.strip, device=device)[:, None, None, None]
            is_in_grid = key >= -start  # the first strip has no rows above it
            is_seen = is_seen & (up <= REACH) & (left.abs() <= REACH) & is_in_grid
        else:
            is_seen = is_seen & (up == 0)
        return F.pad(is_seen, (self.text_part, 0), value=True)


def whole_rows(config: ModelConfig, x: Float[Tensor, "batch seq dim"]) -> list[WholeRows]:
    """Return how each block mixes the positions of `x`: the text part, then whole rows of codes."""
    rows = (x.shape[1] - config.text_part) // config.grid
    of_kind = {kind: WholeRows(kind, config, rows, x.device) for kind in set(config.kinds)}
    return [of_kind[kind] for kind in config.kinds]


def attend(
    q: Heads,
    k: Float[Tensor, "batch key head dim_head"],
    v: Float[Tensor, "batch key head dim_head"],
    **masks,
) -> Heads:
    """Return scaled dot-product attention where the axis of heads comes after that of positions.

    `masks` are those of `torch.nn.functional.scaled_dot_product_attention`.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **masks).transpose(1, 2)


def _lines_in_strip(lines: int, line: int) -> int:
    """Return how many of `lines` lines, of `line` codes each, make a strip: all strips have equally many."""
    return max((n for n in range(2, lines + 1) if lines % n == 0 and n * line <= STRIP), default=1)


def _transposed(codes: Heads, lines: int) -> Heads:
    """Return codes, which come in `lines` lines, with the lines across first."""
    return codes.unflatten(1, (lines, -1)).transpose(1, 2).flatten(1, 2)


def _later(x: Float[Tensor, "batch seq dim"], by: int) -> Float[Tensor, "batch seq dim"]:
    """Return `x` moved `by` positions later, with zeros at the start."""
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]
