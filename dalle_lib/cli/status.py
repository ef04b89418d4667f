"""`dalle-lib status`."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.swarm.process.folder import PEERS, folders_of_peers

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer


@dataclass(frozen=True, kw_only=True)
class Status:
    """Show the peers of this machine, those that run and those that have ended, each with its run, epoch and state.

    It only looks: it starts, stops and changes nothing. For example:

    dalle-lib status

    dalle-lib status --folder peers/emoji-mini --json
    """

    folder: Path = PEERS
    """Folder in which peers were started."""
    json: bool = False
    """Print one JSON document on standard output."""

    def run(self) -> None:
        """Print how each peer stands."""
        from dalle_lib.swarm import Peer

        peers = [Peer(folder) for folder in folders_of_peers(self.folder)]
        if self.json:
            print(json.dumps([as_dict(peer) for peer in peers], indent=1))
        elif peers:
            print("\n\n".join(map(describe_peer, peers)))
        else:
            print(f"No peer has run in {self.folder} yet. A folder of others is named with --folder.")


def describe_peer(peer: "Peer") -> str:
    """Return how a peer stands, in lines: its state, what matters of it if it has trained, since when and where."""
    from dalle_lib.dashboard.words import duration, helped_line, line_of, state_in_words
    from dalle_lib.swarm.process.standing import Standing

    standing = Standing.of(peer)
    ago = duration(max(0.0, time.time() - standing.since))
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(standing.since))
    line = line_of(standing) if standing.epoch is not None else ""
    lines = [
        f"{standing.name} in {standing.run}: {state_in_words(standing)}",
        helped_line(standing) if standing.state == "helping" and standing.swarm is not None else line,
        f"since {since}, {ago} ago, in {peer.folder}",
    ]
    return "\n  ".join(filter(None, lines))


def as_dict(peer: "Peer") -> dict:
    """Return how a peer stands, for JSON. Times are seconds since 1970, what is not known is null."""
    from dalle_lib.dashboard.words import state_in_words
    from dalle_lib.swarm.process.standing import Standing

    standing = Standing.of(peer)
    told = asdict(standing) | {"words": state_in_words(standing), "folder": str(peer.folder)}
    return told | {"is_running": peer.is_running}
