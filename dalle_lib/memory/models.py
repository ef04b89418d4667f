"""What all models that the calculator knows have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Parameter, Tensor
from dalle_lib.memory.tape import Tape

Dense = tuple[Parameter, ...]

_LARGEST = 10_000_000
_MOST_LAYERS = 1000


class Model:
    """Parameters, and one forward pass over `batch` sequences of `sequence` tokens.

    `config` has the field names of the Hub's config.json. Layers that share weights are `distinct` in number.
    """

    defaults: ClassVar[dict] = {}
    attentions: ClassVar[tuple[str, ...]] = ("eager", "sdpa")
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16", "pure-bf16")
    takes_any_length: ClassVar[bool] = True
    has_dropout: ClassVar[bool] = True
    has_limit: ClassVar[bool] = True
    """Whether sequences cannot be longer than `shape.sequence`."""
    fixed: ClassVar[dict] = {}
    """Fields that must have these values: others are not described here."""
    size_names: ClassVar[tuple[str, ...]] = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
    )  # fmt: skip
    """What the config calls the sizes in `shape`, but for the vocabulary."""
    table_bytes = 0
    """Of masks and the like, which are stored but not trained."""

    def __init__(self, config: dict, distinct: int | None = None) -> None:
        for name, value in self.fixed.items():
            if config.get(name, value) != value:
                raise ValueError(f"expected a config whose {name} is {value}, but it is {config[name]!r}.")
        for name, default in self.defaults.items():
            value = config.get(name, default)
            if type(default) is int and not (type(value) is int and 1 <= value <= _LARGEST):
                raise ValueError(f"expected a config whose {name} is a whole number up to {_LARGEST:,}, not {value!r}.")
        self.config = SimpleNamespace(**{**self.defaults, **{k: v for k, v in config.items() if v is not None}})
        self.parameters: list[Parameter] = []
        self.distinct = distinct
        self.build()

    def build(self) -> None:
        """Make the parameters."""
        raise NotImplementedError

    def loss(self, run: "Run") -> Tensor:
        """Return the loss of one batch."""
        raise NotImplementedError

    @property
    def shape(self) -> "Shape":
        """The sizes that are common to all models."""
        hidden, layers, heads, sequence = (getattr(self.config, name) for name in self.size_names)
        return Shape(hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=self.config.vocab_size)

    @property
    def parameter_count(self) -> int:
        """Trained numbers; what is tied counts once."""
        return sum(p.count for p in self.parameters)

    def parameter(self, name: str, *shape: int, is_embedding: bool = False) -> Parameter:
        """Return a new parameter."""
        self.parameters.append(Parameter(name, shape, is_embedding))
        return self.parameters[-1]

    def embedding(self, name: str, rows: int, width: int) -> Parameter:
        """Return a new table."""
        return self.parameter(name, rows, width, is_embedding=True)

    def dense(self, name: str, outputs: int, inputs: int, bias: bool = True) -> Dense:
        """Return a new weight and, unless told otherwise, its bias."""
        weight = self.parameter(name, outputs, inputs)
        return (weight, self.parameter(f"{name}.bias", outputs)) if bias else (weight,)

    def norm(self, name: str, width: int) -> Dense:
        """Return a new gain and bias."""
        return self.parameter(name, width), self.parameter(f"{name}.bias", width)

    def layers(self, make, number: int) -> list[SimpleNamespace]:
        """Return the weights of each layer, shared by turns if fewer are distinct."""
        if number > _MOST_LAYERS:
            raise ValueError(f"expected a config of at most {_MOST_LAYERS} layers, not {number:,}.")
        distinct = min(self.distinct or number, number)
        weights = [make(i) for i in range(distinct)]
        return [weights[i % distinct] for i in range(number)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that are common to all models; `sequence` is the longest."""

    hidden: int
    layers: int
    heads: int
    sequence: int
    vocabulary: int


class Run:
    """One forward pass: the tape, and how it is done."""

    def __init__(self, tape: Tape, batch: int, sequence: int, attention: str, dropout: bool, layer: str) -> None:
        self.tape, self.batch, self.sequence = tape, batch, sequence
        is_written_out = dropout and tape.device == "cpu"  # where sdpa has no dropout of its own
        self.is_eager, self.dropout, self.layer = attention == "eager" or is_written_out, dropout, layer
        self.layer_starts: list[int] = []

    @property
    def tokens(self) -> int:
        """Tokens of the batch."""
        return self.batch * self.sequence

    def drop(self, x: Tensor) -> Tensor:
        """Return `x` after dropout, if there is any."""
        return self.tape.dropout(x, self.dropout)

    def through(self, layer: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Return what a layer makes of its inputs, in the way that was asked for."""
        self.layer_starts.append(next(self.tape.numbers))
        if self.layer == "plain":
            return layer(*inputs)
        return self.tape.checkpoint(layer, *inputs, reversible=self.layer == "reversible")

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        scores: int = 0,
    ) -> Tensor:
        """Return attention of all positions to all.

        In eager attention a learned `bias` and a `mask` are added to the scores, whose softmax is computed in `scores`
        bytes if that is more than they have.
        """
        tape, count = self.tape, self.batch * heads * self.sequence**2
        tape.flops += 4 * q.count * self.sequence
        if not self.is_eager:
            return tape.attention(q, k, v, self.batch * heads * self.sequence)
        if self.batch > 1:
            q, k, v = tape.copy(tape.lowered(q)), tape.copy(tape.lowered(k)), tape.copy(tape.lowered(v))
        x = tape.scale(tape.matmul(q, k, count))
        if bias is not None:
            x = tape.add(x, bias)
        if mask is not None:
            x = tape.shifted(x, mask.width)
        x = self.drop(tape.cast(tape.softmax(tape.cast(x, max(x.width, scores))), v.width))
        x = tape.matmul(x, v, q.count)
        return tape.copy(x)

    def causal_mask(self, width: int) -> Tensor | None:
        """Return the numbers that eager attention adds to its scores."""
        return self.tape.given(self.batch * self.sequence**2, width) if self.is_eager else None


def new_gelu(tape: Tape, x: Tensor) -> Tensor:
    """Return gelu as transformers' `gelu_new` writes it out, step by step."""
    half = tape.scale(x)
    inner = tape.add(x, tape.scale(tape.keeps_input("pow", x)))
    inner = tape.shifted(tape.keeps_output("tanh", tape.scale(inner)))
    return tape.multiply(half, inner)


def activation(tape: Tape, name: str, x: Tensor) -> Tensor:
    """Return an activation function by its name in a Hub config."""
    if name == "gelu_new":
        return new_gelu(tape, x)
    return tape.keeps_output(name, x) if name == "relu" else tape.keeps_input(name, x)


def rms_norm(tape: Tape, x: Tensor, weight: Dense, width: int, whole: bool = False) -> Tensor:
    """Return `x` over its root mean square, as T5 writes it out; Llama divides the `whole` of it in float32."""
    exact = tape.cast(x, 4)
    squares = tape.keeps_input("pow", exact)
    inverse = tape.keeps_output("rsqrt", tape.make("mean", [squares], x.count // width, squares.width))
    del squares
    normed = tape.cast(tape.multiply(exact if whole else x, inverse), x.width)
    return tape.multiply(normed, *weight)
