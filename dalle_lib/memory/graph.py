"""What a training step in symbols is made of: bytes in use, tensors, and the graph of the backward pass."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod


class Memory:
    """Bytes in use by term, and what they were at the highest moment."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.total = self.peak = 0
        self.at_peak: dict[str, int] = {}
        self.moment = self.moment_of_peak = "before the first step"

    def add(self, term: str, size: int) -> None:
        """Count `size` bytes more, or fewer if negative."""
        self.now[term] += size
        self.total += size
        if self.total > self.peak:
            self.peak, self.at_peak, self.moment_of_peak = self.total, dict(self.now), self.moment


class Storage:
    """Bytes that are in use until nothing refers to them any more."""

    __slots__ = ("memory", "size", "term")

    def __init__(self, memory: Memory, size: int, term: str) -> None:
        self.memory, self.size, self.term = memory, size, term
        memory.add(term, size)

    def __del__(self) -> None:
        self.memory.add(self.term, -self.size)

    def become(self, term: str) -> None:
        """Count these bytes under another term."""
        self.memory.now[self.term] -= self.size
        self.memory.now[term] += self.size
        self.term = term


@dataclass(eq=False)
class Parameter:
    """A trained tensor."""

    name: str
    shape: tuple[int, ...]
    is_embedding: bool = False
    grad: Storage | None = field(default=None, repr=False)
    incoming: Storage | None = field(default=None, repr=False)
    """The sum of this backward pass's gradients, until all places that use the parameter have sent theirs."""
    incoming_is_view: bool = False
    uses: int = 0

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(eq=False, slots=True)
class Tensor:
    """A result: so many elements of so many bytes, and what made it, if it needs a gradient."""

    count: int
    width: int
    storage: Storage
    node: "Node | None" = None
    slot: int = 0


@dataclass(eq=False, slots=True)
class Edge:
    """Where a gradient goes, its size, and whether it is a new tensor or the incoming gradient passed on."""

    target: "Node | Parameter"
    slot: int
    size: int
    passes_on: bool = False
    is_view: bool = False
    """Whether the gradient is a view of another tensor, to which nothing can be added in place."""


@dataclass(eq=False, slots=True)
class Node:
    """An operation of the backward pass."""

    number: int
    name: str
    edges: list[Edge]
    saved: list[Storage]
    slots: dict[int, Storage] = field(default_factory=dict)
    replay: Callable[[Storage, list[Storage]], list[Storage]] | None = None
    """What a checkpoint does instead: run its layer again, then go back through it."""
    extra: int = 0
    """Bytes that the operation's gradient needs for itself."""


def run_back(last: Node, grad: Storage, held: list[Storage] | None = None) -> None:
    """Go from `last` to the beginning, latest operation first, as PyTorch does; gradients of parameters remain.

    If there is a list, all that are given to parameters on the way are held in it.
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
        grad = None  # or it would live on with the name


def _gradients(memory: Memory, node: Node) -> list[Storage]:
    """Return the gradients of a node's inputs; what it saved and what came in are given back."""
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
    """Add a gradient to what has already come for its target: in place, but for a view of another tensor."""
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
    """Return all operations that `result` came from, the earliest first."""
    nodes, waiting = {}, [result.node]
    while waiting:
        node = waiting.pop()
        if node.number not in nodes:
            nodes[node.number] = node
            waiting += [edge.target for edge in node.edges if isinstance(edge.target, Node)]
    return [nodes[number] for number in sorted(nodes)]
