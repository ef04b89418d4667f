"""The LAMB optimizer with 8-bit statistics, its parameter groups and the schedule of its learning rate."""

from dalle_lib.optimizer.groups import parameter_groups
from dalle_lib.optimizer.lamb import LAMB8bit
from dalle_lib.optimizer.schedule import linear_warmup_schedule

__all__ = ["LAMB8bit", "linear_warmup_schedule", "parameter_groups"]
