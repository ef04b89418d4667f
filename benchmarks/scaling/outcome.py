"""What a simulated run came to."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Epoch:
    """What one epoch came to."""

    computing_s: float
    matchmaking_s: float
    """Seconds from the epoch's last sample until its largest group began to average."""
    averaging_s: float
    seconds: float
    present: int
    """Peers that looked for a group."""
    largest: int
    """Peers in the largest group."""
    group_count: int
    told: float
    """Share of the largest group that knew in time that it was in it."""
    is_whole: bool
    """Whether all of the largest group's average came back to all."""


@dataclass
class Outcome:
    """What a simulated run came to."""

    epochs: list[Epoch] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)
    """Bytes that a peer of each role sends in an epoch, on average."""
    received: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    """Bytes of all peers in an epoch, by what they are for."""
    busiest_holder_mbps: float = 0.0
    """What the peer that sends most records of the hash table sends, in Mbit/s, and what it could."""
    busiest_holder_of_mbps: float = 0.0
    looks_vain: float = 0.0
    """Share of looks at the hash table that found nothing in time."""
    look_s: float = 0.0
    joins: int = 0
    state_s: float | None = None
    """Mean seconds until a newcomer has the state, None if none had it by the end."""
    states_failed: int = 0
    work_s: float = 0.0
    """Mean seconds of the processor that a peer spends in an epoch beside samples."""
    too_long: bool = False
    """Whether a leader's message to its group was longer than a message may be."""

    def mean(self, name: str) -> float:
        """Return the mean of a number of all epochs."""
        return float(np.mean([getattr(epoch, name) for epoch in self.epochs]))

    @property
    def overhead(self) -> float:
        """Share of the time in which peers do not compute."""
        return 1 - sum(epoch.computing_s for epoch in self.epochs) / sum(epoch.seconds for epoch in self.epochs)
