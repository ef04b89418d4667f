"""The outcome of rounds of averaging, as one of their peers sees it."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.averaging.expected import Expected
from dalle_lib.swarm.bounded import put

MAX_OVER = 16
"""Rounds of which is known that they are over: who comes late for one, comes for one of the last."""
NO_GROUP, NOBODY_FOUND = "could not find a group", "nobody to average with was found in time"
"""What hivemind's error says where a peer found no group, and what is told in its place."""
Counted = dict[str, float]
"""Weight of each peer's tensors in an average, by peer id: in samples for gradients."""


@dataclass(frozen=True)
class Group:
    """The outcome of a round for its group."""

    counted: Counted
    """Every peer of the group, even one whose tensors did not count."""
    epoch: int
    """The epoch of the round (`introductions.vote`)."""
    is_behind: bool = False
    """Whether the parameters of one of the peers lack an update, so the group should average parameters soon."""
    is_whole: bool = True
    """Whether every part came back; where one did not, this peer keeps its own values."""
    bytes_sent: int = 0
    """Bytes that this peer sent, as a sender and as a reducer."""
    bytes_received: int = 0
    """Bytes that it received, as a reducer and as a sender."""
    unchecked: str | None = None
    """Why nobody could check a reducer of this round, if the run's card asks for audits."""

    def __len__(self) -> int:
        return len(self.counted)


@dataclass(frozen=True)
class Averaged:
    """What an average holds."""

    epoch: int
    """Epoch whose gradients, or after whose update the parameters, were averaged."""
    counted: Counted
    """For parameters: one, or zero where they lacked an update; less where a user has many peers."""

    @property
    def shares(self) -> Counted:
        """Share of each peer's tensors in the average, which sum to one; peers of weight zero are left out."""
        total = sum(weight for weight in self.counted.values() if weight > 0)
        return {peer: weight / total for peer, weight in self.counted.items() if weight > 0}


@dataclass(frozen=True)
class Round(Averaged):
    """How the gradients of one epoch were averaged."""

    seconds: float
    """Seconds for which this peer waited for the average."""
    error: str | None = None
    """Why this peer has only its own gradient, or only a part of the average; None if it has the whole average."""
    bytes_sent: int = 0
    """Bytes that this peer sent since the last round, parameters included."""
    bytes_received: int = 0
    """Bytes that it received since then."""
    unchecked: str | None = None
    """Why nobody could check a reducer of this round, if the run's card asks for audits."""


@dataclass(frozen=True)
class ParameterRound(Averaged):
    """How parameters were averaged."""

    is_whole: bool
    """Whether every part came back."""


@dataclass(frozen=True)
class LeftOut:
    """Samples of this peer that are not in the others' update of an epoch."""

    epoch: int
    samples: int
    reason: str
    counts_in: int | None = None
    """Epoch in whose update they are instead; None if they are lost."""
    is_waiting: bool = False
    """Whether this peer's gradients do not count until its parameters have been averaged with the others'."""
    gave_way: tuple[int, int] | None = None
    """Where this peer's part of the run gave way to another: its first epoch that is lost, and the epoch of the other
    part's state."""


@dataclass(frozen=True)
class Brought:
    """The samples in an update, as weights of an average count them."""

    epoch: int
    own: float
    all: float
    """Those of all whose gradients are in it."""


def why_failed(error: BaseException) -> str:
    """Return why a round failed, in one line: hivemind's words, but where it found no group."""
    return NOBODY_FOUND if NO_GROUP in str(error) else in_one_line(error)


class RoundsNow:
    """The rounds that a peer is in, and who is expected in the next: of all its processes, made before the forks.

    Each process knows for itself which of its last rounds are over.
    """

    def __init__(self, longest_s: float = 0.0) -> None:
        """Let groups wait for others that are ready for up to `longest_s`, as `Expected` has it."""
        self.expected = Expected(longest_s)
        self._count, self._over = multiprocessing.Value("i", 0), {}

    @contextmanager
    def one_more(self, group: bytes) -> Iterator[None]:
        """Count a round of the group with this id for as long as the block runs."""
        with self._count.get_lock():
            self._count.value += 1
        try:
            yield
            put(self._over, group, None, MAX_OVER)
        finally:
            with self._count.get_lock():
                self._count.value -= 1

    @property
    def is_any(self) -> bool:
        """Whether this peer exchanges tensors with a group."""
        return self._count.value > 0

    def is_over(self, group: bytes) -> bool:
        """Whether the round of the group with this id has ended, and not failed."""
        return group in self._over
