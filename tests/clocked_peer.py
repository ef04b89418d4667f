"""A one-hot peer (tests/one_hot_peer.py) whose clock a test sets.

SIGUSR1 puts the clock an hour ahead, for it and all processes that it has forked, and SIGUSR2 puts it right again.
"""

import multiprocessing
import signal
import sys
import time
from pathlib import Path

AHEAD_S = 3600.0
ahead_s, right = multiprocessing.RawValue("d", 0.0), time.time  # forks share the first
time.time = lambda: right() + ahead_s.value

from one_hot_peer import main  # noqa: E402  (hivemind takes `time.time` for itself when it is imported)


def set_clock(number: int, _frame) -> None:
    """Set the clock as a signal asks."""
    ahead_s.value = AHEAD_S if number == signal.SIGUSR1 else 0.0


if __name__ == "__main__":
    for number in signal.SIGUSR1, signal.SIGUSR2:
        signal.signal(number, set_clock)
    main(Path(sys.argv[1]))
