"""Measurements: the memory and the time that training a model really takes, in a process of its own."""

from dalle_lib.measurement.measuring import Measurement, measure
from dalle_lib.measurement.workload import build_model, optimizer_of, read_config

__all__ = ["Measurement", "build_model", "measure", "optimizer_of", "read_config"]
