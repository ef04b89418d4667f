"""The peers that one volunteer has in a run: one on each GPU."""

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from dalle_lib.machine import working_gpus
from dalle_lib.swarm.process.join import STOP_TIMEOUT_S, Peer, PeerFailed, join
from dalle_lib.swarm.process.settings import PeerSettings


@dataclass
class Crew:
    """Peers that were started together, by name."""

    folder: Path
    run: str
    """What a peer that wants to join the run gives as its `run`."""
    peers: dict[str, Peer] = field(default_factory=dict)

    def ask_to_stop(self) -> None:
        """Ask all peers to leave, and return at once."""
        for peer in self.peers.values():
            peer.ask_to_stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when all peers have ended: when the run is complete, when they are stopped, or when they fail.

        Raises PeerFailed if one ended by an error, though not before the others have ended, or if one still runs after
        `timeout_s` seconds; None waits without a limit.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        failures = []
        for peer in self.peers.values():
            try:
                peer.wait(max(0.0, deadline - time.monotonic()))
            except PeerFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def close(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """Make all peers leave, and return when they have. Raises PeerFailed as `wait` does."""
        self.ask_to_stop()
        self.wait(timeout_s)


def join_run(settings: PeerSettings, folder: str | Path, token: str | None = None) -> Crew:
    """Join a run of others with a peer on each GPU that works, or on the processor where there is none.

    Settings that name a device make one peer, on that device. The first peer has the settings' name and port; the
    others have -2 and so on after the name, and the ports that follow. Each has a folder of its own in `folder`, where
    it keeps its progress and from where it goes on next time. `token` is a Hub token, for private runs.
    """
    folder = Path(folder).resolve()
    devices = [settings.device] if settings.device != "auto" else working_gpus() or ["cpu"]
    crew = Crew(folder, settings.run)
    for number, device in enumerate(devices, start=1):
        name = settings.name if number == 1 else f"{settings.name}-{number}"
        port = settings.port and settings.port + number - 1
        crew.peers[name] = join(replace(settings, name=name, device=device, port=port), folder / name, token)
    return crew
