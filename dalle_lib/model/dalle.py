"""The model in the order of its forward pass: embeddings, head and loss; then blocks, attention, feed-forward.

Read this file from top to bottom: it is the whole function, but for two parts that have a file of their own because
drawing needs them in another form, too:

- `attention.py`: which positions see each other (three sparse patterns), and token shift;
- `rotary.py`: the angles by which queries, keys and values are rotated.

Two more files say how the same function is computed in less memory or time, and may be skipped:

- `reversible.py`: the loop over the blocks, with activations kept or recomputed;
- `linear.py`: `torch.nn.functional.linear`, by the faster of two libraries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model.attention import Heads, whole_rows
from dalle_lib.model.config import ModelConfig
from dalle_lib.model.inputs import check_inputs
from dalle_lib.model.linear import Linear, linear
from dalle_lib.model.reference import from_reference_names, to_reference_names
from dalle_lib.model.reversible import Layer, run, run_reversibly
from dalle_lib.model.rotary import Rotary, rotate

IMAGE_WEIGHT = 7
"""Weight of the codes' mean loss in the loss, where that of the text tokens' mean loss is 1."""

Stream = Float[Tensor, "batch seq dim"]
Turns = Float[Tensor, "seq pairs 2"]


class Mixing(NamedTuple):
    """The three functions of a block that mix positions; everything else in it treats each position by itself."""

    shift_for_attention: Callable[[Stream], Stream]
    attend: Callable[[Heads, Heads, Heads], Heads]
    shift_for_feed_forward: Callable[[Stream], Stream]


@dataclass(frozen=True)
class DALLEOutput:
    """Losses, in nats per token or code, and the logits they are computed from."""

    loss: Tensor
    text_loss: Tensor
    image_loss: Tensor
    text_logits: Float[Tensor, "batch text text_rows"]
    image_logits: Float[Tensor, "batch codes image_vocab"]

    @property
    def logits(self) -> Float[Tensor, "batch seq vocab"]:
        """Logits over the whole vocabulary; the dtype's lowest number for ids that cannot come next at a position."""
        lowest = torch.finfo(self.text_logits.dtype).min
        text = F.pad(self.text_logits, (0, self.image_logits.shape[-1]), value=lowest)
        image = F.pad(self.image_logits, (self.text_logits.shape[-1], 0), value=lowest)
        return torch.cat([text, image], dim=1)


class DALLE(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="dalle-lib",
    repo_url="https://github.com/dalle-lib/dalle-lib",
    paper_url="https://arxiv.org/abs/2207.03481",
    pipeline_tag="text-to-image",
):
    """Decoder-only transformer over the text tokens of a caption, followed by the codes of a picture.

    One table of weights embeds text tokens and codes and, with a bias, predicts them. `save_pretrained`,
    `from_pretrained` and `push_to_hub` are the Hub's own; each weight is stored once. Source: arXiv:2207.03481.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.rows)

    def forward(
        self,
        text: Int[Tensor, "batch text"],
        codes: Int[Tensor, "batch codes"],
        input_codes: Int[Tensor, "batch shown"] | None = None,
    ) -> DALLEOutput:
        """Return the losses of predicting `text` and `codes`, each from all that comes before it.

        `loss` is (text_loss + w image_loss) / (1 + w), where w is `IMAGE_WEIGHT` and each of the two is a mean over all
        positions, padding included. If `input_codes` are given, the model sees them in place of `codes`, which it still
        predicts.

        Raises ValueError for shapes or ids that the configuration does not have.
        """
        pictures = [codes] if input_codes is None else [codes, input_codes]
        check_inputs(self.config, text, *pictures)
        for ids in pictures:
            if ids.shape[1] != self.config.image_length:
                wanted = f"codes must have shape [batch, {self.config.image_length}], and so must input_codes"
                raise ValueError(f"{wanted}, but got {list(ids.shape)}.")
        return self.unchecked(text, codes, pictures[-1])

    def unchecked(
        self, text: Int[Tensor, "batch text"], codes: Int[Tensor, "batch codes"], shown: Int[Tensor, "batch codes"]
    ) -> DALLEOutput:
        """Return what `forward` does, of inputs that are known to be right: looking at them makes a GPU wait."""
        # Position p predicts element p + 1. The last code predicts nothing: it is there to fill its row.
        hidden = self.norm(self.transformer(self.embed(text, shown))[:, :-1])
        before_text, before_codes = hidden.split([self.config.text_length, self.config.image_length], dim=1)
        text_head, code_head = self.heads()
        text_logits, image_logits = linear(before_text, *text_head), linear(before_codes, *code_head)
        text_loss = F.cross_entropy(text_logits.flatten(0, 1), self.pad_uniquely(text).flatten())
        image_loss = F.cross_entropy(image_logits.flatten(0, 1), codes.flatten())
        loss = (text_loss + IMAGE_WEIGHT * image_loss) / (1 + IMAGE_WEIGHT)
        return DALLEOutput(loss, text_loss, image_loss, text_logits, image_logits)

    def pad_uniquely(self, text: Int[Tensor, "batch text"]) -> Int[Tensor, "batch text"]:
        """Return `text` with each id 0 replaced by the padding token of its position."""
        padding = self.config.text_vocab + torch.arange(text.shape[1], device=text.device)
        return torch.where(text == 0, padding, text)

    def embed(
        self, text: Int[Tensor, "batch text"], codes: Int[Tensor, "batch codes"]
    ) -> Float[Tensor, "batch seq dim"]:
        """Return the embeddings of the start token (id 0), the caption and the codes."""
        ids = torch.cat([F.pad(self.pad_uniquely(text), (1, 0)), codes + self.config.text_rows], dim=1)
        return F.embedding(ids, self.head.weight)

    def embed_codes(self, codes: Int[Tensor, "batch codes"]) -> Float[Tensor, "batch codes dim"]:
        """Return the embeddings of codes alone."""
        return F.embedding(codes + self.config.text_rows, self.head.weight)

    def heads(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return weight and bias of the rows that predict text tokens, and of those that predict codes.

        Which kind comes next is known at each position, and computing that kind alone is a third of the whole product.
        """
        rows = [self.config.text_rows, self.config.image_vocab]
        (text_weight, code_weight), (text_bias, code_bias) = self.head.weight.split(rows), self.head.bias.split(rows)
        return (text_weight, text_bias), (code_weight, code_bias)

    @classmethod
    def from_reference(cls, published: Mapping[str, Tensor], config: ModelConfig) -> "DALLE":
        """Return the model whose weights are given under the names of the published checkpoint, in their dtype.

        A weight that several layers share may stand under all its names, or under any one of them, as in a safetensors
        file, which stores it once. The names are those of `model.reference`.

        Raises ValueError if a weight has no name there, a name is unknown, a shape is another, names of one weight hold
        different values, or the rotary angles are not those of `config`.
        """
        model = cls(config)
        tensors = from_reference_names(published, model.state_dict(), config)
        model.to(next(iter(tensors.values())).dtype)
        model.load_state_dict(tensors)
        return model

    def to_reference(self) -> dict[str, Tensor]:
        """Return the weights on the CPU under all names of the published checkpoint, those of its training code.

        Names of one weight share its memory.
        """
        return to_reference_names({name: tensor.cpu() for name, tensor in self.state_dict().items()}, self.config)

    @classmethod
    def _from_pretrained(cls, *, strict: bool = True, **options) -> "DALLE":
        # The Hub's default would leave a weight that the file lacks at its random start.
        return super()._from_pretrained(strict=strict, **options)


class Transformer(nn.Module):
    """Blocks over two residual streams: each is an attention and a feed-forward layer. All but the last share weights.

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
        """Return the mean of both streams after all blocks; `x` embeds the text part, then whole rows of codes.

        With a block's own layer functions, below, this is::

            x1 = x2 = x
            for block in blocks:
                x1 = x1 + attention_layer(x2, ...)
                x2 = x2 + feed_forward_layer(x1, ...)
            return (x1 + x2) / 2
        """
        mixing = [Mixing(rows.shift, rows.attend, rows.shift) for rows in whole_rows(self.config, x)]
        blocks = self._layers(mixing, self.rotary(x.dtype)[: x.shape[1]], *self.layer_functions)
        x1, x2 = (run_reversibly if self.is_reversible else run)(blocks, x)
        return (x1 + x2) / 2

    def forward_with(self, x: Stream, mixing: Sequence[Mixing], turns: Turns) -> Stream:
        """Return the same where each block looks at other positions by its own `mixing`: this is how drawing caches.

        `turns` are those of the positions of `x`.
        """
        x1, x2 = run(self._layers(mixing, turns, attention_layer, feed_forward_layer), x)
        return (x1 + x2) / 2

    def compile_layers(self, **options) -> None:
        """Compile the layers that `forward` runs: one graph for each kind and direction, however deep the model is.

        `options` are those of `torch.compile`. The whole model has no graph: its backward pass is its own. Drawing does
        not use these layers: compile `Sampler.step`, which serves every code.
        """
        # PyTorch's limit counts the graphs of all models together; beyond it, calls are not compiled.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        options = {"dynamic": False, **options}
        self.layer_functions = tuple(torch.compile(f, **options) for f in (attention_layer, feed_forward_layer))

    def _layers(
        self, mixing: Sequence[Mixing], turns: Turns, attend: Callable[..., Stream], feed: Callable[..., Stream]
    ) -> list[tuple[Layer, Layer]]:
        """Return the attention layer and the feed-forward layer of each block, with what they need besides a stream."""
        return [
            (
                Layer(attend, (block.attention_norm, block.attention_scale, self.attentions[weights]), (mix, turns)),
                Layer(feed, (block.feed_forward_norm, block.feed_forward_scale, self.feed_forwards[weights]), (mix,)),
            )
            for block, weights, mix in zip(self.blocks, self.config.weight_sets, mixing, strict=True)
        ]


class Block(nn.Module):
    """The weights that a block does not share: layer norms and scales of its attention and its feed-forward layer."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        start = 0.1 if number <= 18 else 1e-5 if number <= 24 else 1e-6
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention_scale = nn.Parameter(torch.full((1, 1, config.dim), start))
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.feed_forward_scale = nn.Parameter(torch.full((1, 1, config.dim), start))


def attention_layer(
    x: Stream, norm: nn.LayerNorm, scale: Tensor, attention: "Attention", mixing: Mixing, turns: Turns
) -> Stream:
    """Return what a block's attention layer adds to the first stream when it reads `x`, the second."""
    return scale * attention(mixing.shift_for_attention(norm(x)), turns, mixing.attend)


def feed_forward_layer(
    x: Stream, norm: nn.LayerNorm, scale: Tensor, feed_forward: "FeedForward", mixing: Mixing
) -> Stream:
    """Return what a block's feed-forward layer adds to the second stream when it reads `x`, the first."""
    return scale * feed_forward(mixing.shift_for_feed_forward(norm(x)))


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values are all rotated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        inner = config.heads * config.dim_head
        self.qkv = Linear(config.dim, 3 * inner, bias=False)
        self.out = Linear(inner, config.dim)

    def forward(self, x: Stream, turns: Turns, attend: Callable[[Heads, Heads, Heads], Heads]) -> Stream:
        heads = self.qkv(x).unflatten(-1, (3 * self.heads, -1))  # [batch, seq, 3 x head, dim_head]
        q, k, v = rotate(heads, turns).chunk(3, dim=2)
        return self.out(attend(q, k, v).flatten(2))


class FeedForward(nn.Module):
    """Gated feed-forward layer, whose inner width is 4 dim. The second half of the expansion is the gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = Linear(config.dim, 8 * config.dim)
        self.contract = Linear(4 * config.dim, config.dim)

    def forward(self, x: Stream) -> Stream:
        value, gate = self.expand(x).chunk(2, dim=-1)  # [batch, seq, 4 x dim] each
        return self.contract(value * F.gelu(gate))
