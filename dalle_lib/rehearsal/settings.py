"""What is played in a rehearsal."""

from dataclasses import dataclass

from dalle_lib.rehearsal.links import Link
from dalle_lib.swarm.process.settings import PeerSettings

MAX_VOLUNTEERS = 32
"""Each volunteer is six processes with 0.5 GB of memory and more, and its pieces pass one relay."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is played. Every second volunteer accepts no connections, as behind a home router."""

    volunteers: int = 4
    """How many volunteers train, each in processes of this machine."""
    minutes: float = 5.0
    """How long they train, from the first epoch's end on."""
    up: float = 10.0
    """Upload of each volunteer in Mbit/s."""
    down: float = 50.0
    """Download of each volunteer in Mbit/s."""
    batch_size: int = 8
    """The most samples that each computes between two looks at the others."""
    device: str = "cpu"
    """Where all of them compute: "cpu", or a GPU that has room for all."""
    samples: int | None = None
    """Samples of an epoch; None takes the card's. Give fewer if this machine takes too long for an epoch."""

    def __post_init__(self) -> None:
        if type(self.volunteers) is not int or not 2 <= self.volunteers <= MAX_VOLUNTEERS:
            raise ValueError(
                f"expected 2 to {MAX_VOLUNTEERS} volunteers, which this machine plays, but got {self.volunteers}. "
                "`dalle-lib run plan` tells what more would need."
            )
        if not 0 < self.minutes <= 45:  # an access token and its user's proof last for an hour
            raise ValueError(f"expected above 0 and up to 45 minutes, but got {self.minutes}.")
        Link(up_mbps=self.up, down_mbps=self.down)
        PeerSettings(run="", batch_size=self.batch_size, device=self.device)

    @property
    def names(self) -> tuple[str, ...]:
        """The volunteers' names."""
        return tuple(f"volunteer-{number}" for number in range(1, self.volunteers + 1))

    @property
    def link(self) -> Link:
        """The link of each volunteer."""
        return Link(up_mbps=self.up, down_mbps=self.down)

    def settings(self, name: str) -> PeerSettings:
        """Return how a volunteer takes part."""
        is_client = self.names.index(name) % 2 == 1
        return PeerSettings(
            run="", name=name, batch_size=self.batch_size, threads=1, device=self.device, client_mode=is_client
        )  # fmt: skip
