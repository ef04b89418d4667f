"""How a run is monitored."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What a monitor does and how often; the command line's options too."""

    checkpoint_minutes: float = 30.0
    """Minutes between two checkpoints, each a state of the run that two peers gave."""
    metrics_port: int = 0
    """Port of this machine at which Prometheus finds figures, at /metrics; 0 for none."""
    look_s: float = 5.0
    """Seconds between two looks at the swarm."""
    status_s: float = 15.0
    """Seconds between two versions of status.json; the history is written anew four times more seldom."""

    def __post_init__(self) -> None:
        if not 0 <= self.metrics_port < 2**16:
            raise ValueError(f"expected a port from 1 to 65535, or 0 for none, but got {self.metrics_port}.")
        for name in "checkpoint_minutes", "look_s", "status_s":
            if not 0 < (given := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be above 0, but is {given}.")
