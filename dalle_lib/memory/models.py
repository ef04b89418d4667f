"""The base of all model descriptions, and the operations that several of them use."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Parameter, Tensor
from dalle_lib.memory.tape import Tape

Dense = tuple[Parameter, ...]
"""A weight, followed by its bias if it has one."""

_MAX_SIZE = 10_000_000
MAX_LAYERS = 1000


class ModelDescription:
    """A model as the calculator knows it: its parameters, and one forward pass in symbols.

    `config` has the field names of the Hub's config.json. `distinct`, if given, is the number of layers that have
    weights of their own; the others share them. Raises ValueError for a config that is not described here.
    """

    defaults: ClassVar[dict] = {}
    """Values of the config fields that a config may leave out."""
    attentions: ClassVar[tuple[str, ...]] = ("eager", "sdpa")
    """Attention kernels that the model runs with here, the most efficient last."""
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16", "pure-bf16")
    takes_any_length: ClassVar[bool] = True
    has_dropout: ClassVar[bool] = True
    has_limit: ClassVar[bool] = True
    """Whether no sequence may be longer than `shape.sequence`."""
    fixed: ClassVar[dict] = {}
    """Config fields that must have these values; no other value is described here."""
    size_names: ClassVar[tuple[str, ...]] = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
    )  # fmt: skip
    """The config's names for the sizes in `shape`, without the vocabulary."""
    table_bytes = 0
    """Bytes of tables that are stored but not trained, such as angles."""

    def __init__(self, config: dict, distinct: int | None = None) -> None:
        for name, value in self.fixed.items():
            if config.get(name, value) != value:
                raise ValueError(f"expected a config whose {name} is {value}, but it is {config[name]!r}.")
        for name, default in self.defaults.items():
            value = config.get(name, default)
            is_size = type(default) is int or (default is None and value is not None)
            if is_size and not (type(value) is int and 1 <= value <= _MAX_SIZE):
                raise ValueError(
                    f"expected a config whose {name} is a whole number up to {_MAX_SIZE:,}, but it is {value!r}."
                )
        self.config = SimpleNamespace(**{**self.defaults, **{k: v for k, v in config.items() if v is not None}})
        self.parameters: list[Parameter] = []
        self.distinct = distinct
        self.declare_parameters()

    def declare_parameters(self) -> None:
        """Create the parameters, in the order in which the real model has them."""
        raise NotImplementedError

    def loss(self, forward: "ForwardPass") -> Tensor:
        """Return the loss of one batch, recorded on the tape of `forward`."""
        raise NotImplementedError

    @property
    def shape(self) -> "Shape":
        """The sizes that every model has."""
        hidden, layers, heads, sequence = (getattr(self.config, name) for name in self.size_names)
        return Shape(hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=self.config.vocab_size)

    @property
    def parameter_count(self) -> int:
        """Number of trained values; tied weights count once."""
        return sum(p.count for p in self.parameters)

    def parameter(self, name: str, *shape: int, is_embedding: bool = False) -> Parameter:
        """Return a new parameter of `shape`."""
        self.parameters.append(Parameter(name, shape, is_embedding))
        return self.parameters[-1]

    def embedding(self, name: str, rows: int, width: int) -> Parameter:
        """Return a new embedding table [rows, width]."""
        return self.parameter(name, rows, width, is_embedding=True)

    def dense(self, name: str, outputs: int, inputs: int, bias: bool = True) -> Dense:
        """Return a new weight [outputs, inputs] and, with `bias`, its bias."""
        weight = self.parameter(name, outputs, inputs)
        return (weight, self.parameter(f"{name}.bias", outputs)) if bias else (weight,)

    def norm(self, name: str, width: int) -> Dense:
        """Return the gain and the bias of a new layer norm."""
        return self.parameter(name, width), self.parameter(f"{name}.bias", width)

    def layers(self, make, number: int) -> list[SimpleNamespace]:
        """Return the weights of `number` layers; with fewer distinct ones, the layers take turns with them."""
        if number > MAX_LAYERS:
            raise ValueError(f"expected a config of at most {MAX_LAYERS} layers, not {number:,}.")
        distinct = min(self.distinct or number, number)
        weights = [make(i) for i in range(distinct)]
        return [weights[i % distinct] for i in range(number)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that every model has; `sequence` is the longest that it takes, in positions."""

    hidden: int
    layers: int
    heads: int
    sequence: int
    vocabulary: int


class ForwardPass:
    """One forward pass over `batch` sequences of `sequence` positions: its tape, and how it is computed.

    `attention` is `sdpa` or `eager`, `layer` is `plain`, `checkpoint` or `reversible`.
    """

    def __init__(self, tape: Tape, batch: int, sequence: int, attention: str, dropout: bool, layer: str) -> None:
        self.tape, self.batch, self.sequence = tape, batch, sequence
        is_written_out = dropout and tape.device == "cpu"  # sdpa has no dropout of its own on a CPU
        self.is_eager, self.dropout, self.layer = attention == "eager" or is_written_out, dropout, layer
        self.layer_starts: list[int] = []

    @property
    def positions(self) -> int:
        """Number of positions in the batch."""
        return self.batch * self.sequence

    def drop(self, x: Tensor) -> Tensor:
        """Return `x` after dropout, or `x` itself without dropout."""
        return self.tape.dropout(x, self.dropout)

    def through(self, layer: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Return the result of a layer, which is run plainly, checkpointed or reversibly as `self.layer` says."""
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
        is_eager: bool = False,
    ) -> Tensor:
        """Return attention of all positions to all positions; with `is_eager`, as if it were eager.

        Eager attention adds a learned `bias` and a `mask` to the scores, and computes their softmax with elements of
        `scores` bytes if that is wider than the scores are.
        """
        tape, count = self.tape, self.batch * heads * self.sequence**2
        tape.flops += 4 * q.count * self.sequence
        if not (self.is_eager or is_eager):
            return tape.attention(q, k, v, self.batch * heads * self.sequence)
        if self.batch > 1:
            q, k, v = tape.copy(tape.lowered(q)), tape.copy(tape.lowered(k)), tape.copy(tape.lowered(v))
        with tape.part(is_of_pairs=True):
            x = tape.scale(tape.matmul(q, k, count))
            if bias is not None:
                x = tape.add(x, bias)
            if mask is not None:
                x = tape.shifted(x, mask.width)
            x = self.drop(tape.cast(tape.softmax(tape.cast(x, max(x.width, scores))), v.width))
            x = tape.lowered(x)
        x = tape.matmul(x, v, q.count)
        return tape.copy(x)

    def causal_mask(self, width: int) -> Tensor | None:
        """Return the mask that eager attention adds to its scores; None with efficient attention, which needs none."""
        return self.tape.given(self.batch * self.sequence**2, width) if self.is_eager else None


def new_gelu(tape: Tape, x: Tensor) -> Tensor:
    """Return gelu computed step by step, as `gelu_new` of transformers computes it."""
    half = tape.scale(x)
    inner = tape.add(x, tape.scale(tape.keeps_input("pow", x)))
    inner = tape.shifted(tape.keeps_output("tanh", tape.scale(inner)))
    return tape.multiply(half, inner)


def activation(tape: Tape, name: str, x: Tensor) -> Tensor:
    """Return the activation function `name`, as Hub configs call it, of `x`."""
    if name == "gelu_new":
        return new_gelu(tape, x)
    return tape.keeps_output(name, x) if name == "relu" else tape.keeps_input(name, x)


def rms_norm(tape: Tape, x: Tensor, weight: Dense, width: int, whole: bool = False) -> Tensor:
    """Return `x` divided by its root mean square, in steps as T5 does it; with `whole`, all in float32 as in Llama."""
    exact = tape.cast(x, 4)
    squares = tape.keeps_input("pow", exact)
    inverse = tape.keeps_output("rsqrt", tape.make("mean", [squares], x.count // width, squares.width))
    del squares
    normed = tape.cast(tape.multiply(exact if whole else x, inverse), x.width)
    return tape.multiply(normed, *weight)
