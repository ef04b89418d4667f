"""What training a model really takes, measured in processes of its own."""

from dalle_lib.measurement.measuring import Measurement, measure
from dalle_lib.measurement.workload import build_model, build_optimizer, read_config

__all__ = ["Measurement", "build_model", "build_optimizer", "measure", "read_config"]
