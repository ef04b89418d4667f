"""Peers, each a process of its own, that train one model together.

Names are imported when first used: the supervisor of each peer must start quickly and stay small, so importing this
loads neither torch nor hivemind.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.swarm.process.crew import Crew, join_run
    from dalle_lib.swarm.process.join import CannotJoin, NotAMember, Peer, PeerFailed, join
    from dalle_lib.swarm.process.lending import LendingSettings
    from dalle_lib.swarm.process.local import LocalSwarm, local_swarm, private_swarm, take_part
    from dalle_lib.swarm.process.settings import PeerSettings

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "process.crew": ("Crew", "join_run"),
        "process.join": ("CannotJoin", "NotAMember", "Peer", "PeerFailed", "join"),
        "process.lending": ("LendingSettings",),
        "process.local": ("LocalSwarm", "local_swarm", "private_swarm", "take_part"),
        "process.settings": ("PeerSettings",),
    },
)
