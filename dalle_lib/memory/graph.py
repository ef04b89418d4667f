"""The parts of a symbolic training step: bytes in use, tensors, and the graph of the backward pass."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod


class Memory:
    """Bytes in use by term, now and at the peak so far."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.total = self.peak = 0
        self.at_peak: dict[str, int] = {}
        self.moment = self.moment_of_peak = "before the first step"

    def add(self, term: str, size: int) -> None:
        """Add `size` bytes to a term; a negative `size` frees them."""
        self.now[term] += size
        self.total += size
        if self.total > self.peak:
            self.peak, self.at_peak, self.moment_of_peak = self.total, dict(self.now), self.moment


class Storage:
    """Bytes that are in use until nothing refers to this object, as the memory of a PyTorch storage is.

    `is_of_pairs` says that it holds a number for each pair of positions, as the scores of attention are.
    """

    __slots__ = ("is_of_pairs", "memory", "size", "term")

    def __init__(self, memory: Memory, size: int, term: str, is_of_pairs: bool = False) -> None:
        self.memory, self.size, self.term, self.is_of_pairs = memory, size, term, is_of_pairs
        memory.add(term, size)

    def __del__(self) -> None:
        self.memory.add(self.term, -self.size)

    def become(self, term: str) -> None:
        """Count these bytes under `term` from now on."""
        self.memory.now[self.term] -= self.size
        self.memory.now[term] += self.size
        self.term = term


@dataclass(eq=False)
class Parameter:
    """A trained tensor: its shape, and its gradient once the backward pass has made it."""

    name: str
    shape: tuple[int, ...]
    is_embedding: bool = False
    grad: Storage | None = field(default=None, repr=False)
    incoming: Storage | None = field(default=None, repr=False)
    """The sum of this backward pass's gradients, until each place that uses the parameter has sent its own."""
    incoming_is_view: bool = False
    """Whether `incoming` is a view of another tensor, to which nothing can be added in place."""
    uses: int = 0
    """Places of the forward pass that used the parameter and have not sent a gradient yet."""

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor without numbers: `count` elements of `width` bytes.

    `node` is the operation that made it, if it needs a gradient, and `slot` its number among the results of `node`.
    """

    count: int
    width: int
    storage: Storage
    node: "Node | None" = None
    slot: int = 0


@dataclass(eq=False, slots=True)
class Edge:
    """Where a gradient goes: to which operation or parameter, and how many bytes it has."""

    target: "Node | Parameter"
    slot: int
    size: int
    passes_on: bool = False
    """Whether the incoming gradient itself is passed on, so that no new tensor is made."""
    is_view: bool = False
    """Whether the gradient is a view of another tensor, to which nothing can be added in place."""


@dataclass(eq=False, slots=True)
class Node:
    """An operation of the backward pass; operations of the forward pass are numbered in their order."""

    number: int
    name: str
    edges: list[Edge]
    saved: list[Storage]
    slots: dict[int, Storage] = field(default_factory=dict)
    """The gradient that has come in for each result."""
    replay: Callable[[Storage, list[Storage]], list[Storage]] | None = None
    """What a checkpoint does in place of its own gradient: run its layer again, then go back through the layer."""
    extra: int = 0
    """Bytes of working memory that the operation's gradient needs."""


def run_back(last: Node, grad: Storage, held: list[Storage] | None = None) -> None:
    """Run the backward pass from `last`, the latest operation first, as PyTorch does; gradients of parameters remain.

    `held`, if given, collects each gradient that is handed to a parameter, so that none is freed on the way.
    """
    last.slots[0] = grad
    memory = grad.memory
    del grad
    waiting, seen = [(-last.number, last)], {last}
    while waiting:
        node = heapq.heappop(waiting)[1]
        if node.number < 0:
            continue
        for edge, grad in zip(node.edges, _gradients(memory, node), strict=True):
            _hand_over(edge, grad)
            if held is not None and isinstance(edge.target, Parameter):
                held.append(grad)
            if isinstance(edge.target, Node) and edge.target not in seen:
                seen.add(edge.target)
                heapq.heappush(waiting, (-edge.target.number, edge.target))
        grad = None  # otherwise the variable would keep the last gradient alive


def _gradients(memory: Memory, node: Node) -> list[Storage]:
    """Return the gradients of a node's inputs, and free what the node saved and what came in."""
    incoming = list(node.slots.values())
    node.slots.clear()
    if node.replay:
        return node.replay(incoming.pop(), node.saved)
    own = Storage(memory, node.extra, "backward")
    grads = [incoming[0] if edge.passes_on else Storage(memory, edge.size, "backward") for edge in node.edges]
    del own
    node.saved.clear()
    return grads


def _hand_over(edge: Edge, grad: Storage) -> None:
    """Add a gradient to what its target has already got: in place, unless that is a view of another tensor."""
    target = edge.target
    if isinstance(target, Node):
        target.slots.setdefault(edge.slot, grad)
        return
    if target.incoming is None:
        target.incoming, target.incoming_is_view = grad, edge.is_view
        grad.become("gradients")
    elif target.incoming_is_view:
        target.incoming, target.incoming_is_view = Storage(grad.memory, edge.size, "gradients"), False
    target.uses -= 1
    if target.uses <= 0:
        target.grad, target.incoming = target.grad or target.incoming, None


def graph_of(result: Tensor) -> list[Node]:
    """Return all operations that led to `result`, the earliest first."""
    nodes, waiting = {}, [result.node]
    while waiting:
        node = waiting.pop()
        if node.number not in nodes:
            nodes[node.number] = node
            waiting += [edge.target for edge in node.edges if isinstance(edge.target, Node)]
    return [nodes[number] for number in sorted(nodes)]
