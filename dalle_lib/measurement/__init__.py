"""What training a model really takes, measured in processes of its own."""

from dalle_lib.measurement.build import build_model, build_optimizer, read_config
from dalle_lib.measurement.measuring import Measurement, measure

__all__ = ["Measurement", "build_model", "build_optimizer", "measure", "read_config"]
