"""How a run is monitored."""

import math
from dataclasses import dataclass

ROWS, PROMPTS = 256, 8
MAX_EXAMINED = 10_000
"""Rows or prompts beyond which a number is a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What a monitor does and how often; the command line's options too."""

    checkpoint_minutes: float = 30.0
    """Minutes between two checkpoints, each a state of the run that two peers gave."""
    metrics_port: int = 0
    """Port of this machine at which Prometheus finds figures, at /metrics; 0 for none."""
    alarm_command: str = ""
    """A program and its arguments, as you would type them, that finds alarms in its standard input: such as
    "mail -s my-run you@example.org". It is started at most every ten minutes, without a shell."""
    look_s: float = 5.0
    """Seconds between two looks at the swarm."""
    status_s: float = 15.0
    """Seconds between two versions of status.json; the history is written anew four times more seldom."""
    rows: int = ROWS
    """Held-out rows that each checkpoint is examined by, the first ones: at most, where they take too long."""
    prompts: int = PROMPTS
    """Captions that are drawn with each checkpoint, half of them of training, the others held out."""
    judges: bool = True
    """Judge what checkpoints draw, too, and choose the best of many, as far as a processor can in minutes."""
    licence: str = ""
    """The model's licence by its name on the Hub, such as cc-by-4.0, for its page when the run is finished."""
    record: bool = False
    """Record what the peers have signed, for `dalle-lib replay`, in the folder's recordings/, but nobody anonymous."""
    record_mb: float = 100.0
    """Megabytes that the recordings may have together; then nothing more is recorded."""

    def __post_init__(self) -> None:
        if not 0 <= self.metrics_port < 2**16:
            raise ValueError(f"expected a port from 1 to 65535, or 0 for none, but got {self.metrics_port}.")
        for name in "checkpoint_minutes", "look_s", "status_s", "record_mb":
            if not 0 < (given := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be above 0, but is {given}.")
        for name in "rows", "prompts":
            if not isinstance(given := getattr(self, name), int) or not 2 <= given <= MAX_EXAMINED:
                raise ValueError(f"{name} must be a whole number from 2 to {MAX_EXAMINED:,}, but is {given}.")
