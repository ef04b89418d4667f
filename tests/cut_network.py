"""A network that is cut and healed again: no process of a peer can call one that is on another side."""

import json
from pathlib import Path

from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from one_hot import OneHotPeer, OneHotSwarm

from dalle_lib.auth import Identity
from dalle_lib.peer_keys import peer_id_of
from dalle_lib.swarm.peer import first_peers
from dalle_lib.swarm.peer.membership import IDENTITY

CUT = "cut.json"
"""File of a swarm's folder with the ids of the peers on each side; without it, all can call each other."""


def obey(folder: Path, can_be_cut: bool) -> None:
    """Let no process of the peer in this folder, from now on, call those that the swarm's CUT has on another side.

    To save time, it looks for its first peers every few seconds, in place of every minute, and forgets who is silent
    after a quarter of one. Without `can_be_cut` nothing is changed.
    """
    if not can_be_cut:
        return
    own_id = peer_id_of(Identity.load_or_create(folder / IDENTITY).public_key)
    first_peers.FIRST_PEERS_EVERY_S = 3.0
    ProgressTracker.__init__.__kwdefaults__["metadata_expiration"] = 15.0
    for name in "call_unary_handler", "stream_open":
        setattr(Client, name, _within_a_side(getattr(Client, name), folder.parent / CUT, own_id))


def _within_a_side(call, file: Path, own_id: str):
    async def try_to_call(self, peer_id, *args, **kwargs):
        sides = json.loads(file.read_text()) if file.exists() else []
        if any(str(peer_id) in side and own_id not in side for side in sides):
            raise P2PDaemonError("the network is cut")
        return await call(self, peer_id, *args, **kwargs)

    return try_to_call


def cut(swarm: OneHotSwarm, *sides: list[OneHotPeer]) -> None:
    """Cut the network of a swarm whose peers were added with `cut=True`."""
    unfinished = swarm.folder / "unfinished"
    unfinished.write_text(json.dumps([[peer.peer_id for peer in side] for side in sides]))
    unfinished.rename(swarm.folder / CUT)


def heal(swarm: OneHotSwarm) -> None:
    """Let all peers call each other again."""
    (swarm.folder / CUT).unlink()
