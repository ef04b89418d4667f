"""The text-to-image transformer: its configuration, its exact function and its sampling."""

from dalle_lib.model.config import ModelConfig
from dalle_lib.model.dalle import DALLE, DALLEOutput
from dalle_lib.model.sampling import generate

__all__ = ["DALLE", "DALLEOutput", "ModelConfig", "generate"]
