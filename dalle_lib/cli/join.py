"""`dalle-lib join`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dalle_lib.swarm.process.settings import PeerSettings


@dataclass(frozen=True, kw_only=True)
class Join:
    """Take part in a run from this terminal, with a peer on each GPU, until it is complete or you press Ctrl+C."""

    peer: Annotated[PeerSettings, tyro.conf.arg(name="")]
    folder: Path = field(default=Path("peers"))
    """Folder that holds a folder for each run, and in that one for each peer: its progress, log and events. A peer goes
    on from what is there."""

    def run(self) -> None:
        """Start the peers, and show their progress until they end."""
        from dalle_lib.dashboard.watching import watch
        from dalle_lib.machine import hub_token
        from dalle_lib.run import EMBEDDED_RUNS, RunCard
        from dalle_lib.swarm import join_run
        from dalle_lib.swarm.process.folder import crew_folder

        token = None if self.peer.run in EMBEDDED_RUNS else hub_token()
        card = RunCard.load(self.peer.run, token)
        folder = crew_folder(self.folder, card, self.peer.name)
        if folder == self.folder:
            print(f"Going on in {folder / self.peer.name}, where an earlier version kept this peer's progress.")
        crew = join_run(self.peer, folder, token)
        watch(crew.peers[self.peer.name])
        crew.close()
