"""What a peer sees of the swarm right now, in a file that is replaced whole."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dalle_lib.files import replace_file
from dalle_lib.swarm.process.settings import MAX_NAME

STATUS = "status.json"


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


@dataclass(frozen=True, kw_only=True)
class SwarmStatus:
    """The swarm as one peer sees it."""

    time: float
    """Seconds since 1970."""
    epoch: int
    total_epochs: int
    samples_in_epoch: int | None
    """Samples that all peers together have computed for this epoch; None as a bootstrap peer sees it."""
    target_batch_size: int
    """Samples that make an epoch."""
    peers: list[PeerStatus]
    said_complete: bool = False
    """Whether a peer that has left said that it had the run's last epoch. Nothing checks that."""

    def write(self, folder: Path) -> None:
        """Replace the status file of a peer's folder."""
        with replace_file(folder / STATUS) as unfinished:
            unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "SwarmStatus | None":
        """Return a peer's last status, or None before the first."""
        if not (folder / STATUS).exists():
            return None
        fields = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return cls(**{**fields, "peers": [PeerStatus(**peer) for peer in fields["peers"]]})
