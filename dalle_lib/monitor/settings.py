"""How a run is monitored."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What a monitor does and how often; the command line's options too."""

    checkpoint_minutes: float = 30.0
    """Minutes between two checkpoints, each a state of the run that two peers gave."""
    look_s: float = 5.0
    """Seconds between two looks at the swarm."""
    status_s: float = 15.0
    """Seconds between two versions of status.json; the history is written anew four times more seldom."""

    def __post_init__(self) -> None:
        for name in "checkpoint_minutes", "look_s", "status_s":
            if not 0 < (given := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be above 0, but is {given}.")
