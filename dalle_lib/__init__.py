"""The kit with which volunteers train one text-to-image transformer together over the internet.

Importing this package changes nothing and loads nothing heavy: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.inference import TextToImage
    from dalle_lib.memory import estimate
    from dalle_lib.model import DALLE, ModelConfig
    from dalle_lib.optimizer import LAMB8bit
    from dalle_lib.run import RunCard
    from dalle_lib.swarm import PeerSettings, join_run, local_swarm

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "inference": ("TextToImage",),
        "memory": ("estimate",),
        "model": ("DALLE", "ModelConfig"),
        "optimizer": ("LAMB8bit",),
        "run": ("RunCard",),
        "swarm": ("PeerSettings", "join_run", "local_swarm"),
    },
)
