"""What `averaging.py` measures: how many peers, over which links, and the bytes that these have to carry."""

from dataclasses import dataclass, field

PAPER_PARAMETERS, EPOCH_S = 125_894_244, 200.0
"""Size of the paper's model, and the seconds in which its peers compute an epoch."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is averaged, by how many peers, and over which links."""

    reducers: int = 4
    """Number of peers that every other can reach, so that they reduce."""
    clients: int = 0
    """Number of peers that only connect out, and send everything to the reducers."""
    parameters: int = 12_500_000
    megabits: float = 100.0
    """Rate of each peer's link each way, in Mbit/s."""
    client_up: float | None = None
    """Rate at which a client sends; None if its link is as the others'."""
    client_down: float | None = None
    """Rate at which a client receives."""
    slow_up: float | None = None
    """Rate at which the last peer sends, if it is slower than the others: what these wait is measured."""
    card: dict[str, int] = field(default_factory=dict)
    """Fields of the run card's `averaging` for the kit's peers, such as `--card eight_bit_from 1000`."""
    round_trip_ms: float = 0.0
    part_bytes: int = 2**19
    """Size of the kit's messages; hivemind's have 2**19 bytes."""
    rounds: int = 5
    """Rounds that count, after a first one in which peers connect to each other."""
    congestion_control: str | None = None
    """How TCP finds its rate: "cubic" or "bbr", where the kernel has it; None keeps this machine's setting."""
    ways: tuple[str, ...] = ("plain TCP", "hivemind", "kit")

    @property
    def peers(self) -> int:
        """Number of all peers."""
        return self.reducers + self.clients

    @property
    def ideal_s(self) -> float:
        """Seconds for which the fullest link is full, with parts for reducers, with answers, or with both.

        The link of a slow peer does not count: the others shall not need longer for it.
        """
        return max(self._full_s(0), self._full_s(self.peers - 1 - self.is_slow(self.peers - 1)))

    def is_slow(self, peer: int) -> bool:
        """Return whether a peer sends more slowly than the others."""
        return self.slow_up is not None and peer == self.peers - 1

    def _full_s(self, peer: int) -> float:
        """Return the seconds for which the fuller direction of a peer's link is full."""
        up, down = self.rates(peer)
        sent = sum(self.sent(peer, other) for other in range(self.peers))
        received = sum(self.sent(other, peer) for other in range(self.peers))
        return 8e-6 * max(sent / up, received / down)

    def rates(self, peer: int) -> tuple[float, float]:
        """Return the rates at which a peer sends and receives, in Mbit/s."""
        own = (self.client_up, self.client_down) if peer >= self.reducers else (None, None)
        own = (self.slow_up, own[1]) if self.is_slow(peer) else own
        return tuple(rate or self.megabits for rate in own)

    def sent(self, peer: int, other: int) -> float:
        """Return the bytes that a peer sends another: parts, if that one reduces, and answers, if it does itself."""
        if peer == other:
            return 0.0
        parts = (other < self.reducers) * self.card.get("upload_bits", 8) / 8
        return (parts + (peer < self.reducers)) * self.parameters / self.reducers


def paper_waits(seconds: float, benchmark: Benchmark) -> dict[str, float]:
    """Return the seconds of a round of the paper's size if they grow with the size, and the share spent waiting.

    Shares are of the time from one epoch's end to the next, in which peers compute for EPOCH_S seconds.
    """
    paper_s = seconds * PAPER_PARAMETERS / benchmark.parameters
    waiting = paper_s / (EPOCH_S + paper_s)
    delayed = max(0.0, paper_s - EPOCH_S) / max(paper_s, EPOCH_S)
    return {"seconds": paper_s, "waiting": waiting, "waiting with delayed averaging": delayed}
