"""Worker: a further device of a trainer as the trainer sees it, and the process that computes there."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.shared import Computed, Failed, Job, Order, Ready, SharedFloats, rows_of
from dalle_lib.swarm.peer.computing.way import Way

logger = logging.getLogger(__name__)

STARTS = 4
"""How often a worker is started, at most."""
READY_S = 900.0
"""Seconds in which a worker must be ready: it loads its libraries, and may compile layers, which takes minutes."""
ENDS_S = 10.0
"""Seconds that a process may take to end by itself."""
LOOK_EVERY_S = 0.2
"""Seconds between looks at whether a process that is waited for still runs."""


class Worker:
    """A process that computes shares of gradients. It gets none before it is ready, and none after it has failed."""

    def __init__(self, job: Job, parameters: SharedFloats, gradient: SharedFloats) -> None:
        """Start nothing yet. The worker reads the `parameters` from memory, and writes its `gradient` there."""
        self.job, self.gradient = job, gradient
        self.way: Way | None = None
        """How it computes; None while it is not ready."""
        self.rate: float | None = None
        """Samples a second, lately."""
        self.starts = 0
        self._parameters, self._order = parameters, None
        self._process: subprocess.Popen | None = None
        self._line: Connection | None = None
        self._sending: threading.Thread | None = None
        self._ends_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked."""
        return self.way is not None

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed too often."""
        return self._process is None and self.starts >= STARTS

    @property
    def pid(self) -> int | None:
        """Id of its process, if there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start its process, which loads its libraries before it reads anything."""
        self._line, theirs = Pipe()
        files = theirs.fileno(), self._parameters.file, self.gradient.file
        words = [sys.executable, "-m", "dalle_lib.swarm.peer.computing.worker", *map(str, files), str(os.getpid())]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=files)
        theirs.close()
        self.starts, self.way, self.rate = self.starts + 1, None, None
        self._ends_at = time.monotonic() + READY_S
        _send(self._line, self.job)
        if self._order is not None:
            _send(self._line, self._order)

    def order(self, order: Order) -> None:
        """Tell it how to compute, now and whenever it is started again."""
        self._order = order
        _send(self._line, order)

    def look(self) -> str | None:
        """Return what is new: that it has become ready, or has failed before it was; None for nothing."""
        if self._process is None or self.is_ready:
            return None
        if not self._line.poll() and self._process.poll() is None and time.monotonic() < self._ends_at:
            return None
        answer = self._read(self._ends_at)
        if isinstance(answer, Ready):
            self.way, self.rate = answer.way, answer.way.samples_per_s
            return f"{self.job.device} computes a share"
        again = self.start_again()
        return f"{self.job.device} {answer.problem}, and {'starts again' if again else 'is not used any more'}"

    def ask(self, batches: Sequence[Batch]) -> None:
        """Let it compute the gradient of some batches. This returns at once, also if the process stands still."""
        self._sending = threading.Thread(target=_send, args=(self._line, rows_of(batches)), daemon=True)
        self._sending.start()

    def answer(self, ends_at: float) -> Computed | Failed:
        """Return what it has computed, or why nothing comes, at the latest at a time of `time.monotonic`."""
        return self._read(ends_at)

    def start_again(self) -> bool:
        """End its process, and start it anew unless that was tried often enough; return whether it was."""
        self.end()
        if self.starts >= STARTS:
            return False
        self.start()
        return True

    def end(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs may keep it for long
                self._process.wait(ENDS_S)
            if self._sending is not None:
                self._sending.join(ENDS_S)  # what it sends goes nowhere now
            self._line.close()
        self._process, self._line, self._sending, self.way = None, None, None, None

    def _read(self, ends_at: float) -> Ready | Computed | Failed:
        try:
            while not self._line.poll(LOOK_EVERY_S):
                if time.monotonic() > ends_at:
                    return Failed("does not answer")
                if self._process.poll() is not None and not self._line.poll():
                    break
            else:
                answer = self._line.recv()
                return Failed(f"failed ({answer.problem})") if isinstance(answer, Failed) else answer
        except (EOFError, OSError):  # also in the middle of a message
            logger.info("the worker on %s has closed its end", self.job.device)
        try:
            return Failed(f"ended with exit code {self._process.wait(ENDS_S)}")
        except subprocess.TimeoutExpired:
            return Failed("does not answer")


def _send(line: Connection, message: object) -> None:
    with contextlib.suppress(OSError):  # the process has ended, which is seen when its answer is read
        line.send(message)
