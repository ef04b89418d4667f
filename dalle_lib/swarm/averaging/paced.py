"""An event of which a thread takes notice only now and then, however often it is set."""

import threading
import time
from collections.abc import Callable


class PacedEvent(threading.Event):
    """An event for one thread that waits for it again and again, which it wakes no more often than in `every_s()`."""

    def __init__(self, every_s: Callable[[], float]) -> None:
        super().__init__()
        self.every_s = every_s
        self._next = 0.0
        self._hurries = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Return once it is set and the time since the last such return has passed, or after `timeout` without it."""
        if not super().wait(timeout):
            return False
        self._hurries.wait(max(0.0, self._next - time.monotonic()))
        self._hurries.clear()
        self._next = time.monotonic() + self.every_s()
        return True

    def hurry(self) -> None:
        """Set it, and wake the thread at once."""
        self._hurries.set()
        self.set()
