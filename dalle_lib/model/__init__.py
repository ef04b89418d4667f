"""The text-to-image transformer: its configuration, its function (read `dalle.py` first) and its sampling.

Names are imported when first used: a run's card needs the configuration, and no torch.
"""

from typing import TYPE_CHECKING

from dalle_lib.lazy import lazy_names

if TYPE_CHECKING:
    from dalle_lib.model.cache import cache_bytes
    from dalle_lib.model.config import ModelConfig
    from dalle_lib.model.dalle import DALLE, DALLEOutput
    from dalle_lib.model.sampling import generate, generate_rows

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cache": ("cache_bytes",),
        "config": ("ModelConfig",),
        "dalle": ("DALLE", "DALLEOutput"),
        "sampling": ("generate", "generate_rows"),
    },
)
