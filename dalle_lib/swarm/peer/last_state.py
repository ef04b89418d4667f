"""After the last epoch: a peer stays until the run's monitor has taken the last state."""

import threading
import time

from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.donors import Line
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.process.events import STAYING, EventLog

STAY_S, LONGEST_S = 90.0, 1800.0
"""Seconds for which a peer stays in any case, and for which it does at most while somebody takes its state."""
LOOK_EVERY_S = 1.0


def await_last_update(optimizer: CollaborativeOptimizer, stop: threading.Event, ends_at: float) -> None:
    """Return when a delayed last update is made, `stop` is set, or it is `ends_at`, in seconds since 1970."""
    while optimizer.is_updating and time.time() < ends_at and not stop.wait(LOOK_EVERY_S):
        pass


def give_last_state(card: RunCard, line: Line, stop: threading.Event, ends_at: float, events: EventLog) -> None:
    """Return when nobody takes this peer's state any more, or `stop` is set; at once where no monitor keeps the run.

    `line` is that of those who take it; `ends_at`, in seconds since 1970, is when the peer must leave. That it stays is
    told to `events`.
    """
    if card.checkpoints is None and not card.monitors:
        return
    events.write(STAYING)
    began = time.monotonic()
    while not stop.wait(LOOK_EVERY_S) and time.time() < ends_at and (now := time.monotonic()) < began + LONGEST_S:
        if now > began + STAY_S and line.length == 0:
            return
