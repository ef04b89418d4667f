"""What a peer sees of the swarm right now, in a file that is replaced whole."""

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dalle_lib.files import BrokenFile, read_record, replace_file
from dalle_lib.swarm.process.drift import MAX_SKETCH, Spread
from dalle_lib.swarm.process.events import MAX_TIME
from dalle_lib.swarm.process.evidence import MAX_EVIDENCE
from dalle_lib.swarm.process.settings import MAX_NAME, MAX_TEAM

STATUS = "status.json"
MAX_HELD = 16
"""Letters of the word for what holds a peer."""
MAX_COUNT = sys.float_info.max
"""The largest number that can be divided."""
MAX_SHOWN = 1000
"""Peers in the status that a first peer or an observer writes: anybody can post as many records as they like."""


@dataclass(frozen=True, kw_only=True)
class PeerStatus:
    """One peer, by its own account. It posts this in the hash table (`peer.metrics`), which refuses other values.

    Only the peer itself can tell of itself, but nothing checks that it is true.
    """

    peer_id: str = field(metadata={"max_length": 128})
    name: str = field(metadata={"max_length": MAX_NAME})
    epoch: int = field(metadata={"ge": 0, "le": 10**9})
    samples: int = field(metadata={"ge": 0, "le": 10**12})
    """Samples computed since it joined."""
    samples_per_s: float = field(metadata={"ge": 0, "le": 1e6})
    loss: float | None = field(metadata={"ge": 0, "le": 1e6})
    """Mean loss of its last epoch; None before the first."""
    started_at: float = field(metadata={"ge": 0, "le": MAX_TIME})
    """When it joined: seconds since 1970, by its own clock. What follows is counted from then on."""
    compute_s: float = field(metadata={"ge": 0, "le": 1e9})
    """Seconds in which it computed gradients."""
    counted: float = field(metadata={"ge": 0, "le": 1e12})
    """Weight, in samples, with which its gradients counted in averages with others."""
    sent_bytes: int = field(metadata={"ge": 0, "le": 10**18})
    """Bytes of tensors that it sent in rounds of averaging that ended."""
    received_bytes: int = field(metadata={"ge": 0, "le": 10**18})
    """Bytes of tensors that came in them."""
    hardware: str = field(metadata={"max_length": 60})
    """What it computes on."""
    kit: str = field(metadata={"max_length": 32})
    """Its version of this package."""
    team: str = field(metadata={"max_length": MAX_TEAM})
    """The team that it names, or ""."""
    anonymous: bool
    """Whether its user wants no name told."""
    witnessed: str = field(metadata={"max_length": MAX_EVIDENCE})
    """Weights of some other peers in its last average (`evidence.witness`), or ""."""
    trained: str = field(metadata={"max_length": MAX_EVIDENCE})
    """The last batch of its last epoch (`evidence.BatchLoss`), or ""."""
    held: str = field(default="", metadata={"max_length": MAX_HELD})
    """What holds it, so that it computes nothing: one of `lending.REASONS`, or "". Versions before tell none."""
    sketch: str = field(default="", metadata={"max_length": MAX_SKETCH})
    """Its parameters in short (`drift.Sketch`), or "" while they lack an update. Versions before tell none."""

    @property
    def is_held(self) -> bool:
        """Whether it says that it computes nothing now; a word that this version does not know counts, too."""
        return bool(self.held)


@dataclass(frozen=True, kw_only=True)
class SwarmStatus:
    """The swarm as one peer sees it."""

    time: float = field(metadata={"ge": 0, "le": MAX_TIME})
    """Seconds since 1970."""
    epoch: int = field(metadata={"ge": 0, "le": MAX_COUNT})
    total_epochs: int = field(metadata={"ge": 1, "le": MAX_COUNT})
    samples_in_epoch: int | None = field(metadata={"ge": 0, "le": MAX_COUNT})
    """Samples that all peers together have computed for this epoch; None as a bootstrap peer sees it."""
    target_batch_size: int = field(metadata={"ge": 1, "le": MAX_COUNT})
    """Samples that make an epoch."""
    peers: list[PeerStatus]
    not_shown: int = field(default=0, metadata={"ge": 0, "le": MAX_COUNT})
    """Peers beyond the MAX_SHOWN that are in `peers`."""
    said_complete: bool = False
    """Whether a peer that has left said that it had the run's last epoch. Nothing checks that."""
    users: dict[str, str] = field(default_factory=dict)
    """The user of each peer, by its id, as its access token says; only a monitor's peer looks them up."""

    @property
    def median_epoch(self) -> int | None:
        """`median_epoch` of the peers that are shown."""
        return median_epoch(self.at_work or self.peers, self.users, self.total_epochs)

    @property
    def epoch_of_most(self) -> int | None:
        """The earliest epoch beyond which fewer than half of the users are that are shown: no half can pull it back."""
        peers = self.at_work or self.peers
        return median_epoch(peers, self.users, self.total_epochs, statistics.median_high)

    @property
    def at_work(self) -> list[PeerStatus]:
        """The peers that are shown, without those that something holds: they may be in an epoch long past."""
        return [peer for peer in self.peers if not peer.is_held]

    @property
    def spread(self) -> Spread | None:
        """How far the parameters of the peers at work are apart; None where fewer than two tell that they can."""
        spread = Spread.of({peer.peer_id: peer.sketch for peer in self.at_work}, self.users)
        return spread if spread is not None and len(spread.apart) > 1 and spread.most < math.inf else None

    def user_of(self, peer: PeerStatus) -> str:
        """Return the user of a peer, or the name that it has given itself where no access token names one."""
        return self.users.get(peer.peer_id, peer.name)

    def write(self, folder: Path) -> None:
        """Replace the status file of a peer's folder."""
        with replace_file(folder / STATUS) as unfinished:
            unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the status file of a peer's folder, if there is one."""
        (folder / STATUS).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> "SwarmStatus | None":
        """Return a peer's last status; None before the first, and for a file that is broken or of another version."""
        try:
            return read_record(folder / STATUS, cls._made_of, "A running peer writes it anew every few seconds.")
        except (FileNotFoundError, BrokenFile):
            return None

    @classmethod
    def _made_of(cls, told: dict) -> "SwarmStatus":
        status = cls(**{**told, "peers": [PeerStatus(**peer) for peer in told["peers"]]})
        for record in status, *status.peers:
            _require_within_limits(record)
        return status


def median_epoch(
    peers: Iterable[PeerStatus],
    users: Mapping[str, str],
    total_epochs: int,
    median: Callable[[Iterable[int]], int] = statistics.median_low,
) -> int | None:
    """Return the epoch of the median user, which is that of their median peer; None without peers.

    A peer that `users` does not name is a user of its own. So nobody moves the run's epoch by bringing many peers.
    """
    epochs = defaultdict(list)
    for peer in peers:
        epochs[users.get(peer.peer_id, peer.peer_id)].append(min(peer.epoch, total_epochs))
    return median(map(statistics.median_low, epochs.values())) if epochs else None


def _require_within_limits(record: SwarmStatus | PeerStatus) -> None:
    """Raise ValueError if a field is not of its type, or not within the limits that its metadata tell."""
    for each in fields(record):
        value, limits = getattr(record, each.name), each.metadata
        if value is None and each.type in (int | None, float | None):
            continue
        if each.type is str:
            is_right = isinstance(value, str) and value.isprintable() and len(value) <= limits["max_length"]
        elif limits:
            is_right = isinstance(value, int | float) and limits["ge"] <= value <= limits["le"]
        else:
            is_right = isinstance(value, bool | list | dict)
        if not is_right:
            raise ValueError(f"{each.name} cannot be {value!r}")
