"""Worker: a further device of a trainer as the trainer sees it, and the process that computes there."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.shared import Computed, Failed, Job, SharedFloats, rows_of
from dalle_lib.swarm.peer.computing.way import Way

logger = logging.getLogger(__name__)

FAILURES, FORGETS_S = 4, 3600.0
"""A worker that has failed so often in so many seconds is not started again."""
PAUSE_S = 10.0
"""Seconds after a failure before a worker is started again: what has run out may be there again."""
READY_S = 900.0
"""Seconds in which a worker must be ready: it loads its libraries, and may compile layers, which takes minutes."""
LEAVES_S = 5.0
"""Seconds that a worker is waited for when its peer is to leave."""
ENDS_S = 10.0
"""Seconds that a process may take to end when it is killed."""
LOOK_EVERY_S = 0.2
"""Seconds between looks at whether a process that is waited for still runs."""


class WorkerFailed(Exception):
    """Nothing comes from a worker any more, for this reason."""


class Worker:
    """A process that computes shares of gradients. It gets none before it is ready, and none after it has failed."""

    def __init__(self, job: Job, memory: SharedFloats, part: int) -> None:
        """Start nothing yet. It reads parameters from the first part of the memory, its gradient goes to `part`."""
        self.job, self.memory, self.part = job, memory, part
        self.way: Way | None = None
        """How it computes; None while it is not ready."""
        self.speed: float | None = None
        """Samples a second, by trials; None before them, or where they take too long."""
        self.failures: list[float] = []
        """When it failed lately, in the seconds of `time.monotonic`."""
        self._process: subprocess.Popen | None = None
        self._line: Connection | None = None
        self._sending: threading.Thread | None = None
        self._starts_at, self._ends_at = 0.0, 0.0
        self._sizes: set[int] = set()
        """Samples of batches for which its layers are compiled, if they are."""

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed too often."""
        return len(self.failures) >= FAILURES

    @property
    def pid(self) -> int | None:
        """Id of its process, if there is one."""
        return None if self._process is None else self._process.pid

    def look(self) -> bool:
        """Start its process where that is due, and return whether it has become ready. Raises WorkerFailed."""
        if self._process is None:
            if not self.is_given_up and time.monotonic() >= self._starts_at:
                self._start()
            return False
        is_silent = not self._line.poll() and self._process.poll() is None and time.monotonic() < self._ends_at
        if self.way is not None or is_silent:
            return False
        self._take(self._read(self._ends_at))
        self._sizes = {self.job.rows or self.way.batch}
        return True

    def ask(self, batches: Sequence[Batch]) -> None:
        """Let it compute the gradient of some batches. This returns at once, also if the process stands still."""
        sizes = set(map(len, batches))
        is_slow = self.way.is_compiled and not sizes <= self._sizes
        self._ends_at = time.monotonic() + READY_S if is_slow else 0.0
        self._sizes |= sizes
        self.job = replace(self.job, rows=max(sizes))
        self._sending = threading.Thread(target=_send, args=(self._line, rows_of(batches)), daemon=True)
        self._sending.start()

    def answer(self, ends_at: float, is_over: Callable[[], bool]) -> Computed:
        """Return what it has computed, at the latest at a time of `time.monotonic`, or soon after `is_over`.

        Compiled layers get the time that they take to compile for new sizes. Raises WorkerFailed.
        """
        answer = self._read(max(ends_at, self._ends_at), is_over)
        self._take(answer.way)
        return answer

    def fail(self) -> None:
        """End its process. It starts again after a while, unless it has failed too often."""
        self.end()
        now = time.monotonic()
        self.failures = [*(at for at in self.failures if now - at < FORGETS_S), now]
        self._starts_at = now + PAUSE_S

    def end(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs may keep it for long
                self._process.wait(ENDS_S)
        if self._sending is not None:
            self._sending.join(ENDS_S)  # what it sends goes nowhere now
        is_sending = self._sending is not None and self._sending.is_alive()
        if self._line is not None and not is_sending:  # else it closes with the thread
            self._line.close()
        self._process, self._line, self._sending, self.way = None, None, None, None

    def _start(self) -> None:
        try:
            self._line, theirs = Pipe()
            with theirs:
                numbers = theirs.fileno(), self.memory.file, self.part, os.getpid()
                words = [sys.executable, "-m", "dalle_lib.swarm.peer.computing.worker", *map(str, numbers)]
                self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=numbers[:2])
        except OSError as error:  # no more processes, files or memory
            raise WorkerFailed(f"does not start: {in_one_line(error)}") from error
        self._ends_at = time.monotonic() + READY_S
        _send(self._line, self.job)

    def _take(self, way: Way) -> None:
        """Note how it computes, now and when it is started again."""
        self.speed = self.speed or way.samples_per_s
        self.way = replace(way, samples_per_s=way.samples_per_s or self.speed)
        self.job = replace(self.job, way=self.way)

    def _read(self, ends_at: float, is_over: Callable[[], bool] = lambda: False) -> Way | Computed:
        try:
            while not self._line.poll(LOOK_EVERY_S):
                if is_over():
                    ends_at = min(ends_at, time.monotonic() + LEAVES_S)
                if time.monotonic() > ends_at:
                    raise WorkerFailed("does not answer")
                if self._process.poll() is not None and not self._line.poll():
                    break
            else:
                answer = self._line.recv()
                if isinstance(answer, Failed):
                    raise WorkerFailed(answer.problem)
                return answer
        except (EOFError, OSError):  # also in the middle of a message
            logger.info("the worker on %s has closed its end", self.job.device)
        try:
            code = self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            raise WorkerFailed("does not answer") from None
        way, takes_ram = self.job.way, self.job.device == "cpu"
        if code == -signal.SIGKILL and way is not None and takes_ram:  # perhaps by Linux, for what a batch takes
            self.job = replace(self.job, way=replace(way, batch=max(1, way.batch // 2)))
        raise WorkerFailed(f"ended with exit code {code}")


def _send(line: Connection, message: object) -> None:
    with contextlib.suppress(OSError):  # the process has ended, which is seen when its answer is read
        line.send(message)
