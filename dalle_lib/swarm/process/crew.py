"""The peers that one volunteer has in a run: one on each GPU."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from dalle_lib.machine import working_gpus
from dalle_lib.swarm.process.join import Peer, join
from dalle_lib.swarm.process.settings import PeerSettings


@dataclass
class Crew:
    """Peers that were started together, by name."""

    folder: Path
    run: str
    """What a peer that wants to join the run names."""
    peers: dict[str, Peer] = field(default_factory=dict)

    def ask_to_stop(self) -> None:
        """Ask all peers to leave, and return at once."""
        for peer in self.peers.values():
            peer.ask_to_stop()

    def close(self) -> None:
        """Make all peers leave. Raises PeerFailed if one ended by an error."""
        self.ask_to_stop()
        for peer in self.peers.values():
            peer.wait()


def join_run(settings: PeerSettings, folder: str | Path, token: str | None = None) -> Crew:
    """Join a run of others with a peer on each GPU that computes, or on the processor where there is none.

    Settings that name a device make one peer, on that. The first peer has the settings' name, the others the same with
    -2 and so on, and the ports after it; each keeps its progress in a folder of its own, and goes on from there next
    time. `token` is for private runs.
    """
    folder = Path(folder).resolve()
    devices = [settings.device] if settings.device != "auto" else working_gpus() or ["cpu"]
    crew = Crew(folder, settings.run)
    for number, device in enumerate(devices, start=1):
        name = settings.name if number == 1 else f"{settings.name}-{number}"
        port = settings.port and settings.port + number - 1
        crew.peers[name] = join(replace(settings, name=name, device=device, port=port), folder / name, token)
    return crew
