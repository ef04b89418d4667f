"""The kit with which volunteers train one text-to-image transformer together over the internet.

Where to start:

- draw with the model in the package: TextToImage.from_run("emoji")("penguin on a yellow background").save("pictures")
- train with others: join_run(PeerSettings(run="owner/name", name="ada"), folder="peers").wait()
- a whole swarm on this machine: with local_swarm(RunCard.load("emoji-mini"), "swarm") as swarm: ...
- will a model fit a GPU: estimate("gpt2-large")
- the model and its optimizer alone: DALLE(ModelConfig(...)), LAMB8bit

These are the public names. help(TextToImage) and so on tell more of each; help(dalle_lib) goes on with every class in
full, and with all that it inherits from torch, so leave it here (q). In a terminal, `dalle-lib --help`. README.md has
the rest, and docs/architecture.md is the map of the code.

Importing this package changes nothing and loads nothing heavy: each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names
from dalle_lib.version import __version__

if TYPE_CHECKING:
    from dalle_lib.inference import TextToImage
    from dalle_lib.memory import estimate
    from dalle_lib.model import DALLE, ModelConfig
    from dalle_lib.optimizer import LAMB8bit
    from dalle_lib.run import RunCard
    from dalle_lib.swarm import PeerSettings, join_run, local_swarm

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
