"""`dalle-lib monitor`."""

import os
import signal
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.swarm.process.folder import MONITOR

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer

_SETTINGS = MonitorSettings()


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """Watch over a run: keep its checkpoints, and tell who takes part.

    It does so until you press Ctrl+C. In the folder come status.json and history.json, which a page can show, and a
    checkpoint now and then, each a state that two peers gave and that agreed. Where the card names a repository for
    them, all is sent there. Started again, it goes on where it was. For example:

    dalle-lib monitor --run owner/name

    dalle-lib monitor --run owner/name --folder watched --checkpoint-minutes 60

    dalle-lib generate "penguin on a yellow background" --run watched/monitor
    """

    run_name: Annotated[str, tyro.conf.arg(name="run")]
    """The run: a folder with a run.json, or owner/name on the Hub."""
    folder: Path = Path(MONITOR)
    """Folder for all that it keeps, for this run alone."""
    settings: Annotated[MonitorSettings, tyro.conf.arg(name="")] = _SETTINGS
    initial_peers: tuple[str, ...] = ()
    """Addresses of first peers to try besides those of the run card."""
    private: bool = False
    """Make the repository that the card names for checkpoints a private one, if it is new."""
    host: str = "0.0.0.0"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""

    def run(self) -> None:
        """Start the monitor's peer, and follow the run until Ctrl+C."""
        from dalle_lib.monitor.monitor import Monitor as Follower
        from dalle_lib.run import hub_token_for
        from dalle_lib.swarm.process.addresses import require_addresses

        require_addresses(self.initial_peers)
        print(f"Watching over {self.run_name}, in {self.folder} ...", flush=True)
        token, stop = hub_token_for(self.run_name), threading.Event()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service is stopped so
        start = partial(self._start, token)
        follower = Follower(
            self.run_name, self.folder, start, self.settings, token, partial(print, flush=True), self.private
        )
        try:
            follower.follow(stop)
        except KeyboardInterrupt:
            stop.set()
            print("The monitor has left; started again in the same folder, it goes on.", flush=True)
            os._exit(0)  # torch aborts a process that ends while a thread computes, as one that examines may still do

    def _start(self, token: str | None) -> "Peer":
        from dalle_lib.run import RunCard
        from dalle_lib.swarm import PeerSettings
        from dalle_lib.swarm.process.crew import require_way_in, start_crew

        settings = PeerSettings(
            run=self.run_name, name=MONITOR, role="observer", initial_peers=self.initial_peers, host=self.host,
            port=self.port, state_every_s=60 * self.settings.checkpoint_minutes, keeps_signed=self.settings.record,
        )  # fmt: skip
        card, folder = RunCard.load(self.run_name, token), self.folder.resolve()
        require_way_in(settings, card, folder)
        return start_crew(settings, card, folder, token).peers[MONITOR]
