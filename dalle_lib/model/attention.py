"""Who sees whom: text sees the text before it; a code sees all text, and the codes near it that came before."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig

REACH = 2
"""How far a code sees in "convolution" attention, in rows and columns: the window is 5x5, and centred."""

STRIP = 64
"""A strip has at most this many codes, or is one line if that is longer.

Longer strips copy the text's keys less often, but multiply more that the mask throws away.
"""

Heads = Float[Tensor, "batch seq head dim_head"]
Strips = Float[Tensor, "batch strip code head dim_head"]


class WholeRows:
    """How a block sees a sequence of the text part and whole rows of codes, all positions at once.

    Codes are cut into strips of a few lines: rows, or for "column" attention columns. Each strip attends, as a batch of
    its own, to the text followed by the strip itself and, for "convolution", by the two rows above it: no matrix of all
    positions by all positions is ever built.
    Sources: arXiv:1904.10509 (factorised attention), arXiv:2102.12092, appendix B (rows, columns, windows).
    """

    def __init__(self, kind: str, config: ModelConfig, rows: int, device: torch.device) -> None:
        self.kind, self.text_part, self.grid, self.rows = kind, config.text_part, config.grid, rows
        # How many codes are in a line, in a strip, and seen above a strip:
        lines, self.line = (config.grid, rows) if kind == "column" else (rows, config.grid)
        several = [n for n in range(2, lines + 1) if lines % n == 0 and n * self.line <= STRIP]
        self.strip = self.line * max(several, default=1)
        self.above = REACH * self.line if kind == "convolution" else 0
        self.mask = self._mask(device)
        cell = torch.arange(-self.text_part, rows * self.grid, device=device)
        self.starts_row = ((cell >= 0) & (cell % self.grid == 0))[:, None]

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Return what each position reads; each code's softmax runs over text and codes jointly."""
        (text_q, q), (text_k, k), (text_v, v) = map(self._text_and_codes, (q, k, v))
        read_by_text = attend(text_q, text_k, text_v, is_causal=True)
        if not self.rows:
            return read_by_text
        q = self._in_lines(q, self.rows).unflatten(1, (-1, self.strip))
        k, v = (self._keys(*x) for x in ((text_k, k), (text_v, v)))
        mask = self.mask if self.mask.ndim == 2 else self.mask.repeat(len(q), 1, 1, 1)
        read = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask)
        read_by_codes = self._in_lines(read.unflatten(0, q.shape[:2]).flatten(1, 2), self.grid)  # and back into rows
        return torch.cat([read_by_text, read_by_codes], dim=1)

    def shift(self, x: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """Return `x` with half of each position's entries replaced by those of its neighbours.

        Text takes its first half from the token before. A code takes its first quarter from the code above and its
        second quarter from the code to the left. Entries without a neighbour are zero.
        """
        quarter = x.shape[-1] // 4
        first, second, own = x.split([quarter, quarter, 2 * quarter], dim=-1)
        text, codes = self._text_and_codes(first)
        first = torch.cat([_later(text, 1), _later(codes, self.grid)], dim=1)
        second = _later(second, 1).masked_fill(self.starts_row, 0.0)
        return torch.cat([first, second, own], dim=-1)

    def _text_and_codes(self, x: Float[Tensor, "batch seq *rest"]) -> tuple[Tensor, ...]:
        return x.split([self.text_part, x.shape[1] - self.text_part], dim=1)

    def _in_lines(self, codes: Heads, rows: int) -> Heads:
        """Return codes in that many rows line by line: for "column" attention column by column, else as they are."""
        return codes.unflatten(1, (rows, -1)).transpose(1, 2).flatten(1, 2) if self.kind == "column" else codes

    def _keys(self, text: Heads, codes: Float[Tensor, "batch codes head dim_head"]) -> Strips:
        """Return, for each strip, all of the text and then the codes of which it sees any."""
        if self.kind == "convolution":
            padded = F.pad(codes, (0, 0, 0, 0, self.above, 0))
            near = padded.unfold(1, self.above + self.strip, self.strip).movedim(-1, 2)
        else:
            near = self._in_lines(codes, self.rows).unflatten(1, (-1, self.strip))
        return torch.cat([text[:, None].expand(-1, near.shape[1], -1, -1, -1), near], dim=2)

    def _mask(self, device: torch.device) -> Bool[Tensor, "*strip_1 code key"]:
        """Return which of its strip's keys each code sees."""
        code = torch.arange(self.strip, device=device)[:, None]
        key = torch.arange(-self.above, self.strip, device=device)
        up, left = code // self.line - key // self.line, code % self.line - key % self.line
        seen = key <= code
        if self.kind == "convolution":
            start = torch.arange(0, self.rows * self.grid, self.strip, device=device)[:, None, None, None]
            seen = seen & (up <= REACH) & (left.abs() <= REACH) & (key >= -start)  # the first rows have none above
        else:
            seen = seen & (up == 0)
        return F.pad(seen, (self.text_part, 0), value=True)


def _later(x: Float[Tensor, "batch seq dim"], by: int) -> Float[Tensor, "batch seq dim"]:
    """Return `x` moved to later positions; zeros come first."""
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]


def whole_rows(config: ModelConfig, x: Float[Tensor, "batch seq dim"]) -> list[WholeRows]:
    """Return how each block sees `x`, embeddings of the text part and then of whole rows of codes."""
    rows = (x.shape[1] - config.text_part) // config.grid
    views = {kind: WholeRows(kind, config, rows, x.device) for kind in set(config.kinds)}
    return [views[kind] for kind in config.kinds]


def attend(
    q: Heads,
    k: Float[Tensor, "batch keys head dim_head"],
    v: Float[Tensor, "batch keys head dim_head"],
    **masks,
) -> Heads:
    """Return scaled dot-product attention of heads that come after positions."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **masks).transpose(1, 2)
