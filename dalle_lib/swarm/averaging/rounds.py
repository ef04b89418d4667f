"""What rounds of averaging come to, as one of their peers sees them."""

from dataclasses import dataclass

Counted = dict[str, float]
"""Samples that each peer's gradient counted for in an average, by peer id."""


@dataclass(frozen=True)
class Group:
    """What a round has come to."""

    counted: Counted
    """Every peer of the group, even one whose tensors did not count."""
    epoch: int | None = None
    """The epoch that most of them are in; the later one of two."""
    is_behind: bool = False
    """Whether the parameters of one of them lack an update, so that they should average parameters soon."""
    is_whole: bool = True
    """Whether every part came back; where one did not, this peer's own values stand."""
    bytes_sent: int = 0
    """By this peer, as a sender and as a reducer."""

    def __len__(self) -> int:
        return len(self.counted)


@dataclass(frozen=True)
class Round:
    """How the gradients of one epoch were averaged."""

    epoch: int
    counted: Counted
    seconds: float
    error: str | None = None
    """Why this peer has its own gradient only, or not all of the average."""
    bytes_sent: int = 0
    """By this peer since the last round, for parameters too."""

    @property
    def shares(self) -> Counted:
        """What part of the update each peer's gradient makes; those that did not count are left out."""
        total = sum(weight for weight in self.counted.values() if weight > 0)
        return {peer: weight / total for peer, weight in self.counted.items() if weight > 0}


@dataclass(frozen=True)
class LeftOut:
    """Samples of this peer that the others' update does not hold."""

    epoch: int
    samples: int
    reason: str
