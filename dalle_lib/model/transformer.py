"""The paper's transformer: two residual streams, token shift, rotary angles, shared weights, sparse attention."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.config import ModelConfig
from dalle_lib.model.masks import attention_mask
from dalle_lib.model.rotary import rotary_angles, rotate, turns

BODY = ("row", "column", "row", "row")
"""Kinds of attention of blocks 0, 1, 2, 3, repeated with the same weights; the last block is "convolution"."""


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values are all rotated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        inner = config.heads * config.dim_head
        self.qkv = nn.Linear(config.dim, 3 * inner, bias=False)
        self.out = nn.Linear(inner, config.dim)

    def forward(self, x: Tensor, turn: Tensor, mask: Tensor, history: "History | None") -> Tensor:
        """Return what each position reads where `mask` [seq, keys] allows; `history` adds earlier keys and values."""
        heads = self.qkv(x).unflatten(-1, (3 * self.heads, -1))
        q, k, v = rotate(heads, turn).transpose(1, 2).chunk(3, dim=1)
        if history is not None:
            k, v = history.append("keys", k, dim=2), history.append("values", v, dim=2)
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(read.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated feed-forward layer; the second half of the expansion is the gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.dim, 8 * config.dim)
        self.contract = nn.Linear(4 * config.dim, config.dim)

    def forward(self, x: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        value, gate = self.expand(x).chunk(2, dim=-1)
        return self.contract(value * F.gelu(gate))


@dataclass
class History:
    """What one block remembers of the positions it has already seen, for sampling code by code."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def append(self, name: str, new: Tensor, dim: int) -> Tensor:
        """Return everything stored under `name`, `new` included."""
        old = self.tensors.get(name)
        self.tensors[name] = new if old is None else torch.cat([old, new], dim=dim)
        return self.tensors[name]


class TokenShift(nn.Module):
    """Replaces half of each position's entries by those of its neighbours; has no parameters.

    Text takes its first half from the token before. A code takes its first quarter from the code above and its second
    quarter from the code to the left; where there is no such neighbour the entries are zero.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        position = torch.arange(config.length)
        cell = position - config.text_part
        above = torch.where(cell >= config.grid, position - config.grid, -1)
        left = torch.where(cell % config.grid > 0, position - 1, -1)
        self.quarter = config.dim // 4
        self.register_buffer("first", torch.where(cell < 0, position - 1, above), persistent=False)
        self.register_buffer("second", torch.where(cell < 0, position - 1, left), persistent=False)

    def forward(self, x: Tensor, history: History | None, name: str) -> Tensor:
        """Return `x` [batch, seq, dim] shifted; its positions follow those that `history` holds under `name`."""
        q, seq = self.quarter, x.shape[1]
        moved = x[..., : 2 * q]
        seen = moved if history is None else history.append(name, moved, dim=1)
        padded = F.pad(seen, (0, 0, 1, 0))  # row 0: no neighbour
        now = slice(seen.shape[1] - seq, seen.shape[1])
        first = padded[..., :q].index_select(1, self.first[now] + 1)
        second = padded[..., q:].index_select(1, self.second[now] + 1)
        return torch.cat([first, second, x[..., 2 * q :]], dim=-1)


class Block(nn.Module):
    """What a block does not share: the layer norms and scales of its attention and its feed-forward layer."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        start = 0.1 if number <= 18 else 1e-5 if number <= 24 else 1e-6
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention_scale = nn.Parameter(torch.full((1, 1, config.dim), start))
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.feed_forward_scale = nn.Parameter(torch.full((1, 1, config.dim), start))


class Transformer(nn.Module):
    """Blocks that share their weights in groups of four, over two streams whose mean is the result.

    Sources: arXiv:2207.03481 (sharing, kinds of attention), arXiv:2001.04451 (two streams), arXiv:2103.17239 (scales).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        body = min(len(BODY), config.depth - 1)
        self.weight_sets = tuple([i % len(BODY) for i in range(config.depth - 1)] + [body])
        self.attentions = nn.ModuleList(Attention(config) for _ in range(body + 1))
        self.feed_forwards = nn.ModuleList(FeedForward(config) for _ in range(body + 1))
        self.blocks = nn.ModuleList(Block(config, number) for number in range(1, config.depth + 1))
        self.shift = TokenShift(config)
        self.dim_head = config.dim_head
        self.register_buffer("angles", rotary_angles(config), persistent=False)
        for kind in {*BODY[:body], "convolution"}:
            self.register_buffer(f"{kind}_mask", attention_mask(kind, config), persistent=False)

    def kind(self, block: int) -> str:
        """Return the kind of attention of a block."""
        return "convolution" if block == len(self.blocks) - 1 else BODY[block % len(BODY)]

    def forward(
        self, x: Float[Tensor, "batch seq dim"], histories: list[History] | None = None
    ) -> Float[Tensor, "batch seq dim"]:
        """Return the mean of both streams; with `histories` (one a block), `x` continues what they hold."""
        start = 0 if histories is None else histories[0].tensors.get("keys", x.new_empty(0, 0, 0)).shape[2]
        end = start + x.shape[1]
        turn = turns(self.angles[start:end], self.dim_head)
        x1 = x2 = x
        for i, (block, weights) in enumerate(zip(self.blocks, self.weight_sets, strict=True)):
            history = None if histories is None else histories[i]
            mask = getattr(self, f"{self.kind(i)}_mask")[start:end, :end]
            h = self.shift(block.attention_norm(x2), history, "attention")
            x1 = x1 + block.attention_scale * self.attentions[weights](h, turn, mask, history)
            h = self.shift(block.feed_forward_norm(x1), history, "feed_forward")
            x2 = x2 + block.feed_forward_scale * self.feed_forwards[weights](h)
        return (x1 + x2) / 2
