"""The paper's transformer: two residual streams, token shift, rotary angles, shared weights, sparse attention."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.attention import whole_rows
from dalle_lib.model.config import ModelConfig
from dalle_lib.model.linear import Linear
from dalle_lib.model.reversible import Layer, run, run_reversibly
from dalle_lib.model.rotary import Rotary, rotate

Stream = Float[Tensor, "batch seq dim"]
Turns = Float[Tensor, "seq pairs 2"]


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values are all rotated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        inner = config.heads * config.dim_head
        self.qkv = Linear(config.dim, 3 * inner, bias=False)
        self.out = Linear(inner, config.dim)

    def forward(self, x: Stream, turns: Turns, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Stream:
        heads = self.qkv(x).unflatten(-1, (3 * self.heads, -1))  # [batch, seq, 3 x head, dim_head]
        q, k, v = rotate(heads, turns).chunk(3, dim=2)
        return self.out(attend(q, k, v).flatten(2))


class FeedForward(nn.Module):
    """Gated feed-forward layer; the second half of the expansion is the gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = Linear(config.dim, 8 * config.dim)
        self.contract = Linear(4 * config.dim, config.dim)

    def forward(self, x: Stream) -> Stream:
        value, gate = self.expand(x).chunk(2, dim=-1)  # [batch, seq, 4 x dim] each
        return self.contract(value * F.gelu(gate))


class Block(nn.Module):
    """What a block does not share: the layer norms and scales of its attention and its feed-forward layer."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        start = 0.1 if number <= 18 else 1e-5 if number <= 24 else 1e-6
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention_scale = nn.Parameter(torch.full((1, 1, config.dim), start))
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.feed_forward_scale = nn.Parameter(torch.full((1, 1, config.dim), start))


class Around(NamedTuple):
    """How the layers of one block learn of other positions."""

    shift_for_attention: Callable[[Stream], Stream]
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    shift_for_feed_forward: Callable[[Stream], Stream]


def attention_layer(x: Stream, norm, scale: Tensor, attention: Attention, turns: Turns, views: Around) -> Stream:
    """Return what an attention layer adds to the first stream when it reads `x`, the second."""
    return scale * attention(views.shift_for_attention(norm(x)), turns, views.attend)


def feed_forward_layer(x: Stream, norm, scale: Tensor, feed_forward: FeedForward, views: Around) -> Stream:
    """Return what a feed-forward layer adds to the second stream when it reads `x`, the first."""
    return scale * feed_forward(views.shift_for_feed_forward(norm(x)))


class Transformer(nn.Module):
    """Blocks that share their weights in groups of four, over two streams whose mean is the result.

    Sources: arXiv:2207.03481 (sharing, kinds of attention), arXiv:2001.04451 (two streams), arXiv:2103.17239 (scales).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        sets = max(config.weight_sets) + 1
        self.attentions = nn.ModuleList(Attention(config) for _ in range(sets))
        self.feed_forwards = nn.ModuleList(FeedForward(config) for _ in range(sets))
        self.blocks = nn.ModuleList(Block(config, number) for number in range(1, config.depth + 1))
        self.rotary = Rotary(config)
        self.is_reversible = config.depth > 8
        """Whether training recomputes activations: a third more work, and memory for one layer however deep it is."""
        self.layer_functions = attention_layer, feed_forward_layer

    def forward(self, x: Stream) -> Stream:
        """Return the mean of both streams for embeddings of the text part and then of whole rows of codes."""
        around = [Around(view.shift, view.attend, view.shift) for view in whole_rows(self.config, x)]
        layers = self.layers(around, self.rotary(x.dtype)[: x.shape[1]], *self.layer_functions)
        x1, x2 = (run_reversibly if self.is_reversible else run)(layers, x)
        return (x1 + x2) / 2

    def compile_layers(self, **options) -> None:
        """Compile what `forward` computes in a layer: one graph for each kind and direction, however deep the model.

        `options` are those of `torch.compile`. The whole model has no graph: its backward pass is its own. A Sampler
        does not use these layers: compile its `step`, which serves every code.
        """
        # PyTorch's limit counts the graphs of all models together; beyond it, calls are not compiled.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        options = {"dynamic": False, **options}
        functions = attention_layer, feed_forward_layer
        self.layer_functions = tuple(torch.compile(function, **options) for function in functions)

    def layers(
        self,
        around: Sequence[Around],
        turns: Turns,
        attention_layer: Callable[..., Stream] = attention_layer,
        feed_forward_layer: Callable[..., Stream] = feed_forward_layer,
    ) -> list[Layer]:
        """Return the attention and the feed-forward layer of each block, given how each sees other positions."""
        layers = []
        for block, weights, views in zip(self.blocks, self.config.weight_sets, around, strict=True):
            attention, feed_forward = self.attentions[weights], self.feed_forwards[weights]
            norm, scale = block.attention_norm, block.attention_scale
            function = partial(attention_layer, norm=norm, scale=scale, attention=attention, turns=turns, views=views)
            layers.append(Layer(function, (norm, scale, attention)))
            norm, scale = block.feed_forward_norm, block.feed_forward_scale
            function = partial(feed_forward_layer, norm=norm, scale=scale, feed_forward=feed_forward, views=views)
            layers.append(Layer(function, (norm, scale, feed_forward)))
        return layers
