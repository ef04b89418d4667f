"""What a peer sees of the swarm right now, in a file that is replaced whole."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

STATUS = "status.json"


@dataclass(frozen=True, kw_only=True)
class PeerStatus:
    """One peer, by its own account."""

    peer_id: str
    name: str
    epoch: int
    samples: int
    samples_per_s: float
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class SwarmStatus:
    """The swarm as one peer sees it."""

    time: float
    epoch: int
    total_epochs: int
    samples_in_epoch: int
    target_batch_size: int
    peers: list[PeerStatus]

    def write(self, folder: Path) -> None:
        """Replace the status file of a peer's folder."""
        unfinished = folder / f"{STATUS}.unfinished"
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(unfinished, folder / STATUS)

    @classmethod
    def read(cls, folder: Path) -> "SwarmStatus | None":
        """Return a peer's last status, or None before the first."""
        if not (folder / STATUS).exists():
            return None
        fields = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return cls(**{**fields, "peers": [PeerStatus(**peer) for peer in fields["peers"]]})
