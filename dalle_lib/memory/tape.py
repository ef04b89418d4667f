"""A training step in symbols: tensors that have sizes but no numbers, and operations that keep what PyTorch keeps.

Each operation allocates its result and saves for its gradient what PyTorch's operation saves. A storage is freed as
soon as nothing refers to it, as in PyTorch. Running a model in symbols, forward and backward, therefore shows what is
in memory at every moment, and no tensor is made. The operations follow torch 2.14 and transformers 5.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from dalle_lib.memory.graph import Edge, Memory, Node, Parameter, Storage, Tensor, run_back
from dalle_lib.memory.hardware import summing_bytes

Device = Literal["cuda", "cpu"]

FLOAT32_ON = {
    "cuda": frozenset({"layer_norm", "softmax", "pow", "rsqrt", "nll"}),
    "cpu": frozenset({"log_softmax", "nll"}),
}
"""Operations that autocast computes in float32; the others keep the type of their inputs."""


class Tape:
    """Runs a model in symbols and counts its memory and its floating point operations.

    `width` is the bytes of a weight; `half` is the bytes of a number under autocast, None without autocast.
    """

    def __init__(self, memory: Memory, width: int = 4, half: int | None = None, device: Device = "cuda") -> None:
        self.memory, self.width, self.half, self.device = memory, width, half, device
        self.float32 = FLOAT32_ON[device] if half else frozenset()
        self.term = "activations"
        self.keeps, self.replays = True, False
        self.autocast_copies: dict[Parameter, Tensor] = {}
        self.numbers = itertools.count()
        self.flops = 0
        self.streams: list[Storage] = []
        """The results of the last two reversible layers, which give all earlier ones, and their gradient."""
        self.is_of_pairs = False
        self.reversible_layers = 0
        self.replayed_copies: dict[Parameter, Tensor] = {}
        self.biased_in: set[str] = set()
        """The passes, each in a thread of its own, in which a product gets a bias."""

    # The parts of every operation

    def new(self, size: int, term: str | None = None) -> Storage:
        """Return a new storage of `size` bytes, counted under `term` or else under the current term."""
        return Storage(self.memory, size, term or self.term, self.is_of_pairs)

    def make(
        self, name: str, inputs: Sequence[Tensor | Parameter], count: int, width: int, saved: Sequence[Storage] = (),
        passes_on: bool = False, storage: Storage | None = None, extra: int = 0,
    ) -> Tensor:  # fmt: skip
        """Return the result of the operation `name`: `count` elements of `width` bytes.

        `saved` is kept for the gradient, which needs `extra` bytes of working memory. With `passes_on` the incoming
        gradient is handed on as it is. `storage`, if given, is shared with an input: the result is a view.
        """
        storage = storage or self.new(count * width)
        edges = [edge for value in inputs if (edge := self._edge(value, passes_on)) is not None]
        if not edges:
            return Tensor(count, width, storage)
        node = Node(next(self.numbers), name, edges, list(saved) if self.keeps else [], extra=extra)
        return Tensor(count, width, storage, node)

    def _edge(self, value: Tensor | Parameter, passes_on: bool) -> Edge | None:
        if isinstance(value, Parameter):
            value.uses += not self.replays
            return Edge(value, 0, value.count * self.width)
        if value.node is None:
            return None
        return Edge(value.node, value.slot, value.count * value.width, passes_on)

    def _summing(self, added: Tensor | Parameter | None, count: int) -> int:
        """Return the working memory in which a gradient of `count` elements is summed to that of what was added."""
        return summing_bytes(count // added.count, added.count) if added and self.device == "cuda" else 0

    @contextmanager
    def part(self, term: str | None = None, is_of_pairs: bool = False) -> Iterator[None]:
        """Count everything made inside this context under `term`, as numbers for each pair of positions or not."""
        before = self.term, self.is_of_pairs
        self.term, self.is_of_pairs = term or self.term, is_of_pairs
        yield
        self.term, self.is_of_pairs = before

    # Operations

    def given(self, count: int, width: int) -> Tensor:
        """Return a tensor that needs no gradient: ids, masks, tables."""
        return Tensor(count, width, self.new(count * width))

    def leaf(self, count: int, width: int, needs_gradient: bool) -> Tensor:
        """Return a tensor that no operation made, but that may get a gradient."""
        node = Node(next(self.numbers), "leaf", [], []) if needs_gradient else None
        return Tensor(count, width, self.new(count * width), node)

    def embed(self, ids: Tensor, table: Parameter) -> Tensor:
        """Return a row of `table` for each id."""
        return self.make("embedding", [table], ids.count * table.shape[1], self.width, [ids.storage])

    def cast(self, x: Tensor, width: int) -> Tensor:
        """Return `x` in a type of `width` bytes; `x` itself if it has that width."""
        return x if x.width == width else self.make("cast", [x], x.count, width)

    def lowered(self, x: Tensor) -> Tensor:
        """Return `x` in the type in which autocast hands it to a matrix product."""
        return self.cast(x, self.half or x.width)

    def weight(self, parameter: Parameter) -> Tensor | Parameter:
        """Return a weight in the type in which autocast multiplies it; the copy is kept until the forward pass ends."""
        if not self.half or self.half == self.width:
            return parameter
        if parameter not in self.autocast_copies:
            with self.part("autocast copies"):
                self.autocast_copies[parameter] = self.make("cast", [parameter], parameter.count, self.half)
        return self.autocast_copies[parameter]

    def linear(
        self, x: Tensor, weight: Parameter | Tensor, bias: Parameter | Tensor | None = None, outputs: int | None = None
    ) -> Tensor:
        """Return `x` times a weight [outputs, inputs], or times a view of some rows of one."""
        # Autocast keeps no copy of a view.
        x, used = self.lowered(x), self.weight(weight) if isinstance(weight, Parameter) else self.lowered(weight)
        outputs = outputs or weight.shape[0]
        inputs = weight.count // outputs
        saved = [x.storage] if isinstance(used, Parameter) else [x.storage, used.storage]
        count, read = x.count // inputs * outputs, [x, used, *([bias] if bias else [])]
        if bias:
            self.biased_in.add("backward" if self.replays else "forward")
        y = self.make("linear", read, count, x.width, saved, extra=self._summing(bias, count))
        self.flops += 2 * y.count * inputs
        for edge in y.node.edges:
            edge.is_view = edge.target is weight
        return y

    def matmul(self, a: Tensor, b: Tensor, count: int) -> Tensor:
        """Return the product of two results."""
        a, b = self.lowered(a), self.lowered(b)
        return self.make("matmul", [a, b], count, a.width, [a.storage, b.storage])

    def attention(self, q: Tensor, k: Tensor, v: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
        """Return memory-efficient attention: it keeps one number for each of the `rows` of scores, not the row."""
        q, k, v = self.lowered(q), self.lowered(k), self.lowered(v)
        out, sums = self.new(q.count * q.width), self.new(rows * 4)
        saved = [q.storage, k.storage, v.storage, out, sums, *([bias.storage] if bias else [])]
        return self.make("attention", [q, k, v], q.count, q.width, saved, storage=out)

    def layer_norm(self, x: Tensor, weight: Parameter, bias: Parameter | None, width: int) -> Tensor:
        """Return `x` normalised over rows of `width` elements."""
        x = self._float32("layer_norm", x)
        statistics = self.new(2 * x.count // width * x.width)
        return self.make(
            "layer_norm", [x, weight, *([bias] if bias else [])], x.count, x.width, [x.storage, statistics]
        )

    def softmax(self, x: Tensor, name: str = "softmax") -> Tensor:
        """Return the softmax, or its logarithm; the result is saved."""
        x = self._float32(name, x)
        out = self.new(x.count * x.width)
        return self.make(name, [x], x.count, x.width, [out], storage=out)

    def keeps_input(self, name: str, x: Tensor) -> Tensor:
        """Return an element-wise function whose input is saved: gelu, silu, a power."""
        x = self._float32(name, x)
        return self.make(name, [x], x.count, x.width, [x.storage])

    def keeps_output(self, name: str, x: Tensor) -> Tensor:
        """Return an element-wise function whose result is saved: relu, tanh, rsqrt."""
        x = self._float32(name, x)
        out = self.new(x.count * x.width)
        return self.make(name, [x], x.count, x.width, [out], storage=out)

    def scale(self, x: Tensor) -> Tensor:
        """Return `x` times a number."""
        return self.make("scale", [x], x.count, x.width)

    def shifted(self, x: Tensor, width: int = 0) -> Tensor:
        """Return `x` plus a number, or plus a tensor of elements of `width` bytes that needs no gradient."""
        width = max(x.width, width)
        return self.make("shift", [x], x.count, width, passes_on=width == x.width)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sum of `a` and `b`, in the wider of their types."""
        width = max(a.width, b.width)
        passes_on = a.width == b.width and a.count == b.count
        return self.make("add", [a, b], max(a.count, b.count), width, passes_on=passes_on)

    def multiply(self, a: Tensor, b: "Tensor | Parameter") -> Tensor:
        """Return the element-wise product; each factor is saved for the other's gradient."""
        width = max(a.width, self.width if isinstance(b, Parameter) else b.width)
        saved = [] if isinstance(b, Parameter) else [b.storage]
        saved += [a.storage] if isinstance(b, Parameter) or b.node else []
        extra = a.count * width + self._summing(b, a.count) if isinstance(b, Parameter) else 0
        return self.make("multiply", [a, b], max(a.count, b.count), width, saved, extra=extra)

    def copy(self, x: Tensor) -> Tensor:
        """Return a contiguous copy of `x`."""
        return self.make("copy", [x], x.count, x.width, passes_on=True)

    def repeat(self, x: Tensor, count: int, is_view: bool = False) -> Tensor:
        """Return `x` repeated to `count` elements; with `is_view`, as a view of `x`."""
        return self.make("repeat", [x], count, x.width, storage=x.storage if is_view else None)

    def chunks(self, x: Tensor, number: int) -> list[Tensor]:
        """Return views of `number` equal parts of `x`; their gradients are joined again."""
        return self.split(x, *[x.count // number] * number)

    def split(self, x: "Tensor | Parameter", *counts: int) -> list[Tensor]:
        """Return views of parts of `x` with these numbers of elements; their gradients are joined again."""
        is_parameter = isinstance(x, Parameter)
        width, storage = (self.width, self.new(0)) if is_parameter else (x.width, x.storage)
        whole = self.make("split", [x], x.count, width, storage=storage)
        return [Tensor(count, width, storage, whole.node, slot) for slot, count in enumerate(counts)]

    def slice(self, x: Tensor, count: int) -> Tensor:
        """Return a view of part of `x`, whose gradient is zero elsewhere."""
        return self.make("slice", [x], count, x.width, storage=x.storage)

    def concatenate(self, *parts: Tensor) -> Tensor:
        """Return the parts joined into one tensor."""
        return self.make("concatenate", parts, sum(p.count for p in parts), parts[0].width)

    def dropout(self, x: Tensor, is_on: bool) -> Tensor:
        """Return `x` after dropout; its mask is saved, in one byte an element on a GPU."""
        if not is_on:
            return x
        mask = self.new(x.count * (1 if self.device == "cuda" else x.width))
        return self.make("dropout", [x], x.count, x.width, [mask])

    def cross_entropy(self, logits: Tensor, rows: int) -> Tensor:
        """Return the mean cross-entropy over `rows` rows of logits."""
        log_softmax = self._float32("nll", self.softmax(logits, "log_softmax"))
        saved = [log_softmax.storage, self.new(rows * 8)]
        return self.make("nll", [log_softmax], 1, log_softmax.width, saved)

    def checkpoint(self, layer: Callable[..., Tensor], *inputs: Tensor | None, reversible: bool = False) -> Tensor:
        """Return the result of `layer`, of which only the inputs are saved; if `reversible`, not even its two streams.

        The layer is run again when its gradient is due. A reversible layer's streams are the inputs that have its
        result's size; at that point they are computed back from the streams after it.
        Sources: arXiv:1604.06174 (checkpointing), arXiv:1707.04585 (reversible layers).
        """
        y_count = None
        shapes = [(x.count, x.width) for x in inputs if x]
        places = [x is not None for x in inputs]

        def replay(grad: Storage, saved: list[Storage]) -> list[Storage]:
            term, copies = self.term, self.autocast_copies
            # All reversible layers are replayed under one autocast, which keeps its copies from layer to layer.
            self.autocast_copies = self.replayed_copies if reversible else {}
            self.term, self.keeps, self.replays = "recomputed layer", True, True
            if reversible and len(self.streams) == 2:
                self.streams.append(grad)
            if grad in self.streams:  # it must stay as it is: both streams' gradients are computed from it
                grad = Storage(self.memory, grad.size, "backward")
            starts = [Node(-1 - i, "input", [], []) for i in range(len(shapes))]
            values = [
                Tensor(count, width, self.new(count * width) if is_stream(count) else saved.pop(0), start)
                for (count, width), start in zip(shapes, starts, strict=True)
            ]
            # A reversible layer keeps its streams and its result to compute the earlier streams from. It asks for all
            # its gradients at once, before any of them is added to an earlier gradient.
            held = [value.storage for value in values] if reversible else None
            result = layer(*[values.pop(0) if place else None for place in places])
            self.term, self.autocast_copies = term, copies
            last = result.node
            if not reversible:
                del result
            run_back(last, grad, held)
            self.replays = False
            self.reversible_layers -= reversible
            if not self.reversible_layers:
                self.streams.clear()
                self.replayed_copies.clear()
            return [start.slots.pop(0) for start in starts]

        def is_stream(count: int) -> bool:
            return reversible and count == y_count

        before, self.keeps = self.keeps, False
        y = layer(*inputs)
        self.keeps, y_count = before, y.count
        edges = [self._edge(x, False) for x in inputs if x]
        saved = [x.storage for x in inputs if x and not is_stream(x.count)]
        if reversible:
            self.streams = [*self.streams[-1:], y.storage]
            self.reversible_layers += 1
        node = Node(next(self.numbers), "checkpoint", edges, saved, replay=replay)
        return Tensor(y.count, y.width, y.storage, node)

    def _float32(self, name: str, x: Tensor) -> Tensor:
        return self.cast(x, 4) if name in self.float32 else x

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass from `loss`; the gradients of parameters remain."""
        run_back(loss.node, self.new(loss.width, "backward"))
