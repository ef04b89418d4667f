"""The same function as `dalle_lib.model`, as one would write it first: what the model's benchmarks compare with.

Each kind of attention has one dense mask of all positions by all positions, for PyTorch's fused attention. Dense layers
are PyTorch's, and so is the backward pass. Drawing caches the keys and values of all positions, text included, for each
picture. It is written in good faith: nothing is computed twice, masks and tables are made once, the cache is allocated
once and read only as far as it is filled, and the head computes only that part of the vocabulary which can come next.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.rotary import rotate
from dalle_lib.model.sampling import code_probabilities

YARDSTICK = ModelConfig(
    dim=256, depth=16, heads=4, dim_head=64, text_length=256, text_vocab=32100, image_vocab=8192, grid=32
)
"""The paper's model, made narrower and less deep."""
PRESETS = {"yardstick": YARDSTICK, "paper": ModelConfig.paper(), "emoji": ModelConfig.emoji()}


class Plain:
    """Computes the plain way with the weights of a model."""

    def __init__(self, model: DALLE) -> None:
        self.model, self.config = model, model.config
        c, device = self.config, model.head.weight.device
        position = torch.arange(c.length, device=device)
        cell = position - c.text_part
        row, column = cell // c.grid, cell % c.grid
        rows_apart, columns_apart = (row[:, None] - row).abs(), (column[:, None] - column).abs()
        near = {
            "row": rows_apart == 0,
            "column": columns_apart == 0,
            "convolution": (rows_apart <= 2) & (columns_apart <= 2),
        }
        causal = position <= position[:, None]
        self.masks = {kind: causal & ((cell < 0) | is_near) for kind, is_near in near.items()}
        above = torch.where(cell >= c.grid, position - c.grid, -1)
        left = torch.where(column > 0, position - 1, -1)
        self.first = torch.where(cell < 0, position - 1, above) + 1
        self.second = torch.where(cell < 0, position - 1, left) + 1
        self.turns = model.transformer.rotary(model.head.weight.dtype)

    def loss(self, text: Tensor, codes: Tensor) -> Tensor:
        """Return the training loss."""
        c, m = self.config, self.model
        hidden = m.norm(self.transformer(m.embed(text, codes[:, :-1]), 0, None))
        at_text, at_codes = hidden.split([c.text_length, c.image_length], dim=1)
        text_head, code_head = m.heads()
        at_text, at_codes = F.linear(at_text, *text_head), F.linear(at_codes, *code_head)
        text_loss = F.cross_entropy(at_text.flatten(0, 1), m.pad_uniquely(text).flatten())
        return (text_loss + 7 * F.cross_entropy(at_codes.flatten(0, 1), codes.flatten())) / 8

    def transformer(self, x: Tensor, start: int, cache: "Cache | None") -> Tensor:
        """Return the mean of both streams at positions from `start` on; the cache holds the earlier ones."""
        t = self.model.transformer
        end = start + x.shape[1]
        x1 = x2 = x
        for i, (block, weights, kind) in enumerate(
            zip(t.blocks, self.config.weight_sets, self.config.kinds, strict=True)
        ):
            attention, feed_forward = t.attentions[weights], t.feed_forwards[weights]
            h = self.shift(block.attention_norm(x2), start, cache and cache.shifted[2 * i])
            heads = dense(h, attention.qkv).unflatten(-1, (3 * attention.heads, -1))
            q, k, v = rotate(heads, self.turns[start:end]).transpose(1, 2).chunk(3, dim=1)
            if cache is not None:
                k, v = cache.extend(i, start, k, v)
            mask = self.masks[kind][start:end, :end]
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x1 = x1 + block.attention_scale * dense(h.transpose(1, 2).flatten(2), attention.out)
            h = self.shift(block.feed_forward_norm(x1), start, cache and cache.shifted[2 * i + 1])
            value, gate = dense(h, feed_forward.expand).chunk(2, dim=-1)
            x2 = x2 + block.feed_forward_scale * dense(value * F.gelu(gate), feed_forward.contract)
        return (x1 + x2) / 2

    def shift(self, x: Tensor, start: int, seen: Tensor | None) -> Tensor:
        """Return `x` after token shift; `seen`, if given, remembers what later positions need."""
        quarter, end = self.config.dim // 4, start + x.shape[1]
        if seen is None:
            padded = F.pad(x[..., : 2 * quarter], (0, 0, 1, 0))
        else:
            seen[:, start + 1 : end + 1] = x[..., : 2 * quarter]
            padded = seen
        first = padded[..., :quarter].index_select(1, self.first[start:end])
        second = padded[..., quarter:].index_select(1, self.second[start:end])
        return torch.cat([first, second, x[..., 2 * quarter :]], dim=-1)

    @torch.no_grad()
    def draw(self, text: Tensor, steps: int, top_k: int) -> Tensor:
        """Return the first `steps` codes of one picture of each caption, drawn among the `top_k` likeliest."""
        m, cache = self.model, Cache(self, len(text))
        x, start, codes = m.embed(text, text[:, :0]), 0, []
        for _ in range(steps):
            hidden = m.norm(self.transformer(x, start, cache)[:, -1])
            probabilities = code_probabilities(F.linear(hidden, *m.heads()[1]), top_k)
            codes.append(torch.multinomial(probabilities, 1))
            start += x.shape[1]
            x = m.embed_codes(codes[-1])
        return torch.cat(codes, dim=1)


def dense(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return a dense layer's output as PyTorch computes it."""
    return F.linear(x, layer.weight, layer.bias)


class Cache:
    """Keys, values and entries for token shift of all positions, for each block and picture."""

    def __init__(self, plain: Plain, pictures: int) -> None:
        c, like = plain.config, plain.model.head.weight
        self.keys, self.values = like.new_zeros(2, c.depth, pictures, c.heads, c.length, c.dim_head)
        self.shifted = like.new_zeros(2 * c.depth, pictures, c.length + 1, c.dim // 2)

    def extend(self, block: int, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values of a block so far, the new ones included."""
        end = start + k.shape[2]
        self.keys[block][:, :, start:end], self.values[block][:, :, start:end] = k, v
        return self.keys[block][:, :, :end], self.values[block][:, :, :end]
