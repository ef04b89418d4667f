"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object],
    timeout_s: float = 60.0,
    told: Callable[[], str] = str,
    watch: Callable[[], object] = bool,
) -> None:
    """Return once a condition holds. Fails after `timeout_s` with what `told` returns, and before as `watch` does.

    It looks ten times a second, but no more than a fifth of the time: peers need the processor, too.
    """
    began = look = time.monotonic()
    while not condition():
        watch()
        now = time.monotonic()
        assert now < began + timeout_s, f"timed out\n{told()}"
        time.sleep(max(0.1, 4 * (now - look)))
        look = time.monotonic()
