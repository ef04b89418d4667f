"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return once a condition holds. Fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)
