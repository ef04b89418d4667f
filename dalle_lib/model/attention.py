"""Who sees whom: text sees the text before it; a code sees all text, and the codes near it that came before."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig

REACH = 2
"""How far a code sees in "convolution" attention, in rows and columns: the window is 5x5, and centred."""

Heads = Float[Tensor, "batch seq head dim_head"]
Lines = Float[Tensor, "batch line cell head dim_head"]


class WholeRows:
    """How a block sees a sequence of the text part and whole rows of codes, all positions at once.

    Each line of codes (a row; for "column" attention a column) attends, as a batch of its own, to the text followed by
    the few codes that it can see: no matrix of all positions by all positions is ever built.
    Sources: arXiv:1904.10509 (factorised attention), arXiv:2102.12092, appendix B (rows, columns, windows).
    """

    def __init__(self, kind: str, config: ModelConfig, rows: int, device: torch.device) -> None:
        self.kind, self.text_part, self.grid = kind, config.text_part, config.grid
        self.mask = self._mask(rows, device)
        cell = torch.arange(-self.text_part, rows * self.grid, device=device)
        self.starts_row = ((cell >= 0) & (cell % self.grid == 0))[:, None]

    def attend(self, q: Heads, k: Heads, v: Heads) -> Heads:
        """Return what each position reads; each code's softmax runs over text and codes jointly."""
        (text_q, q), (text_k, k), (text_v, v) = map(self._text_and_codes, (q, k, v))
        read_by_text = attend(text_q, text_k, text_v, is_causal=True)
        if not q.shape[1]:
            return read_by_text
        q = self._lines(q)
        k, v = (self._keys(*x) for x in ((text_k, k), (text_v, v)))
        mask = self.mask if self.mask.ndim == 2 else self.mask.repeat(len(q), 1, 1, 1)
        read = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask).unflatten(0, q.shape[:2])
        read_by_codes = (read.transpose(1, 2) if self.kind == "column" else read).flatten(1, 2)
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

    def _lines(self, codes: Float[Tensor, "batch codes head dim_head"]) -> Lines:
        rows = codes.unflatten(1, (-1, self.grid))
        return rows.transpose(1, 2) if self.kind == "column" else rows

    def _keys(self, text: Heads, codes: Float[Tensor, "batch codes head dim_head"]) -> Lines:
        """Return, for each line, all of the text and then the codes of which it sees any."""
        near = self._lines(codes)
        if self.kind == "convolution":
            padded = F.pad(near, (0, 0, 0, 0, 0, 0, REACH, 0))
            near = torch.cat([padded[:, i : i + near.shape[1]] for i in range(REACH + 1)], dim=2)
        return torch.cat([text[:, None].expand(-1, near.shape[1], -1, -1, -1), near], dim=2)

    def _mask(self, rows: int, device: torch.device) -> Bool[Tensor, "*line_1 cell key"]:
        """Return which of its line's keys each code sees."""
        cells = rows if self.kind == "column" else self.grid
        seen = torch.ones(cells, cells, dtype=torch.bool, device=device).tril()
        if self.kind == "convolution":
            near = torch.ones_like(seen).tril(REACH).triu(-REACH)
            row = torch.arange(rows, device=device)[:, None, None, None]
            above = [near & (row >= up) for up in range(REACH, 0, -1)]  # the first rows have none above
            seen = torch.cat([*above, (near & seen).expand_as(above[0])], dim=-1)
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
