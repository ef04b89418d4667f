"""One thread that reads ahead, so that a trainer does not wait for a slow link."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Made = TypeVar("Made")
_LOOK_S = 0.2


class Ahead(Generic[Asked, Made]):
    """Calls `make` in a thread of its own, for one thing at a time, before the result is needed.

    The thread must not be in a library that cannot be stopped when Python ends: it is a daemon.
    """

    def __init__(self, make: Callable[[Asked], Made]) -> None:
        self._make, self._asked, self._made = make, queue.SimpleQueue(), queue.SimpleQueue()
        self._pending: list[Asked] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reads ahead", daemon=True)
        self._thread.start()

    def ask(self, what: Asked) -> None:
        """Begin to make something."""
        self._pending.append(what)
        self._asked.put((what,))

    def take(self, what: Asked) -> Made | None:
        """Return what `make` makes of something, when it is ready; None after `close`. Raises what `make` did.

        What was asked for before it is dropped. Raises ValueError in a process that was forked later.
        """
        if what not in self._pending:
            self.ask(what)
        while not self._closed.is_set():
            try:
                made, error = self._made.get(timeout=_LOOK_S)
            except queue.Empty:
                if not (self._thread.is_alive() or self._closed.is_set()):
                    raise ValueError("nothing reads ahead in this process: call prefetch after forking.") from None
                continue
            if self._pending.pop(0) != what:
                continue
            if error is not None:
                raise error
            return made
        return None

    def close(self) -> None:
        """End the thread as soon as `make` returns, and who waits in `take` at once."""
        self._closed.set()
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closed.is_set():
            try:
                self._made.put((self._make(*asked), None))
            except Exception as error:  # whatever it is, who waits for the result must hear of it
                self._made.put((None, error))
