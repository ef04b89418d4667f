"""How one peer behaves; peers of one run may differ in every field here."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Settings of one peer. What all peers must share is in the run card."""

    run: str
    """The run: "emoji-mini", a folder with a run.json, or owner/name on the Hub."""
    role: Literal["trainer", "bootstrap"] = "trainer"
    """A trainer computes gradients; a bootstrap peer only helps others to find each other."""
    name: str = "volunteer"
    """What the other peers see you as."""
    initial_peers: tuple[str, ...] = ()
    """Addresses to try besides the run card's."""
    host: str = "0.0.0.0"
    """Address to listen on; 127.0.0.1 keeps everything on this machine."""
    port: int = 0
    """Port to listen on, of the first GPU's peer; the others take those after it. 0 takes free ones."""
    client_mode: bool = False
    """Connect out only, for peers behind a firewall."""
    batch_size: int = 16
    """Samples computed at once. Raise while memory allows, as long as an epoch takes several such steps."""
    threads: int = 1
    """Processor threads for computing."""
    device: str = "auto"
    """"cuda:1", "cpu", or "auto" for the first GPU where there is one. A peer computes on one."""
    duty: float = 1.0
    """Share of the time to compute, the rest is rest: 0.5 leaves half of a core to you."""
    start_after_s: float = 0.0
    """Seconds to wait before joining."""
    max_minutes: float | None = None
    """Leave after this long; without it, when the run is complete."""
    seed: int | None = None
    """Seed of this peer's order of data; without it, derived from its name."""

    def __post_init__(self) -> None:
        if not 0 < self.duty <= 1:
            raise ValueError(f"duty must be above 0 and at most 1, but is {self.duty}.")
        if self.batch_size < 1 or self.threads < 1:
            raise ValueError(f"batch_size and threads must be at least 1, but are {self.batch_size}, {self.threads}.")

    @property
    def data_seed(self) -> int:
        """The seed of this peer's order of data: its own, or one derived from its name."""
        if self.seed is not None:
            return self.seed
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little")

    def save(self, file: Path) -> None:
        """Write the settings as JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "PeerSettings":
        """Return the settings that `save` wrote."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**fields, "initial_peers": tuple(fields["initial_peers"])})
