"""The memory calculator: what one training step of a model needs, by term. It uses the standard library only."""

from dalle_lib.memory.advice import advise, largest_batch
from dalle_lib.memory.estimate import Estimate, estimate
from dalle_lib.memory.hardware import GPUS, gpu_named
from dalle_lib.memory.presets import PRESETS
from dalle_lib.memory.training import Training

__all__ = ["GPUS", "PRESETS", "Estimate", "Training", "advise", "estimate", "gpu_named", "largest_batch"]
