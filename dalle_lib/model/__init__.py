"""The text-to-image transformer: its configuration, its function (read `dalle.py` first) and its sampling."""

from dalle_lib.model.cache import cache_bytes
from dalle_lib.model.config import ModelConfig
from dalle_lib.model.dalle import DALLE, DALLEOutput
from dalle_lib.model.sampling import generate, generate_rows

__all__ = ["DALLE", "DALLEOutput", "ModelConfig", "cache_bytes", "generate", "generate_rows"]
