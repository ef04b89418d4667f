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
    """Folder that holds a folder for each peer: its progress, log and events. A peer goes on from what is there."""

    def run(self) -> None:
        """Start the peers, and show their progress until they end."""
        from dalle_lib.run.files import card_here
        from dalle_lib.swarm.process.addresses import require_addresses

        card_here(self.peer.run)
        require_addresses(self.peer.initial_peers)
        print(f"Joining {self.peer.run} as {self.peer.name} ...", flush=True)  # what follows loads torch, for seconds

        from dalle_lib.dashboard.watching import watch
        from dalle_lib.machine import hub_token
        from dalle_lib.swarm import join_run

        crew = join_run(self.peer, self.folder, hub_token())
        watch(crew.peers[self.peer.name])
        crew.close()
