"""Peers, each a process of its own, that train one model together.

Names are imported when first used: the supervisor of each peer must start quickly and stay small, so importing this
loads neither torch nor hivemind.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalle_lib.swarm.crew import Crew, join_run
    from dalle_lib.swarm.local import LocalSwarm, local_swarm
    from dalle_lib.swarm.process import Peer, PeerFailed, join
    from dalle_lib.swarm.settings import PeerSettings

_HOMES = {
    "Crew": "crew",
    "LocalSwarm": "local",
    "Peer": "process",
    "PeerFailed": "process",
    "PeerSettings": "settings",
    "join": "process",
    "join_run": "crew",
    "local_swarm": "local",
}

__all__ = ["Crew", "LocalSwarm", "Peer", "PeerFailed", "PeerSettings", "join", "join_run", "local_swarm"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
