"""Whether all that a peer consists of still lives; where not, it saves its progress and is started again.

hivemind waits without end for a process that is no more, as where the system has ended it because memory ran out.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import InvalidStateError
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.process.events import AGAIN, EventLog
from dalle_lib.swarm.process.join import STARTS_AGAIN

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 3.0
SAVE_S, END_S = 180.0, 10.0
"""Seconds in which progress must be saved, and in which the peer must have ended after that: else it is ended."""
NO_MEMORY = "memory ran out for more than a batch"
GRACE_S = 5.0
"""Seconds that a peer that has not begun takes to leave by itself, as it does between the steps of its start."""
CONNECTS = "process that connects this peer to others"


class LostPart(Exception):
    """A part of this peer has ended, or memory ran out for one; the text says which."""


@runtime_checkable
class Part(Protocol):
    """A process or a thread."""

    def is_alive(self) -> bool:
        """Return whether it runs."""


@contextmanager
def nothing_to_save(stop: threading.Event) -> Iterator[None]:
    """End this process GRACE_S after `stop` is set, with exit code 0, unless the block has ended by then.

    It has nothing to save and nobody to tell, and a download, or a look for peers, may take minutes.
    """
    is_over = threading.Event()

    def leave() -> None:
        stop.wait()
        if not is_over.wait(GRACE_S):
            logger.info("this peer was asked to leave before it has begun, and is ended")
            logging.shutdown()
            os._exit(0)

    threading.Thread(target=leave, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@contextmanager
def living(
    parts: Mapping[str, Part], events: EventLog, stop: threading.Event, saved: threading.Event | None = None
) -> Iterator["Keeper"]:
    """Set `stop` if one of the parts, by what they are, ends while the block runs; then raise LostPart after the block.

    What the block waits for from another process of this peer raises Interrupted then. A block that does not end is
    ended with the process, but not before `saved` is set, if it soon is. It is the same, without Interrupted, where the
    keeper in the block notes that memory ran out.
    """
    keeper = Keeper(parts, events, stop, saved)
    threading.Thread(target=keeper.keep, daemon=True).start()
    try:
        yield keeper
    except (Exception, Interrupted):
        if not keeper.lost:
            raise
        logger.exception("this peer lacks a part")
    finally:
        keeper.is_over.set()
    if keeper.lost:
        raise LostPart(keeper.lost)


class Keeper:
    """Looks after the parts of a peer, and sees that it ends where it lacks one."""

    def __init__(
        self, parts: Mapping[str, Part], events: EventLog, stop: threading.Event, saved: threading.Event | None
    ) -> None:
        self.parts, self.events, self.stop, self.saved = parts, events, stop, saved
        self.lost, self.is_over = "", threading.Event()

    @contextmanager
    def again_without_memory(self) -> Iterator[None]:
        """Let the peer leave, and be started again, where memory runs out in the block; NotEnoughRoom passes."""
        from dalle_lib.machine import NotEnoughRoom  # both load torch
        from dalle_lib.swarm.peer.computing.room import is_out_of_memory

        try:
            yield
        except Exception as error:
            if isinstance(error, NotEnoughRoom) or not is_out_of_memory(error):
                raise
            logger.exception("this peer lacks a part")
            self._lack(NO_MEMORY)
        # The error is gone here, and with it all tensors of its frames: saving needs room.

    def keep(self) -> None:
        """Look after the parts until the peer has left, or lacks one; then end it if it does not end by itself."""
        while not self.is_over.wait(LOOK_EVERY_S):
            for name, part in self.parts.items():
                if not (self.stop.is_set() or part.is_alive()):
                    exit_code = getattr(part, "exitcode", None)
                    how = "" if exit_code is None else f" (exit code {exit_code})"
                    self._lack(f"the {name} has ended{how}, as when memory runs out")
            if self.lost:
                self._see_off()
                return

    def _lack(self, what: str) -> None:
        self.lost = self.lost or what
        logger.error("this peer starts again: %s", self.lost)
        with contextlib.suppress(OSError):  # a full disk keeps it from nothing
            self.events.write(AGAIN, reason=self.lost)
        self.stop.set()

    def _see_off(self) -> None:
        ends = time.monotonic() + (0.0 if self.saved is None else SAVE_S)
        while True:
            if not all(part.is_alive() for part in self.parts.values()):
                _end_waits()
            if time.monotonic() >= ends or self.saved.wait(LOOK_EVERY_S):
                break
        if self.is_over.wait(END_S):
            return
        logger.error("this peer does not end by itself, and is ended")
        os._exit(STARTS_AGAIN)


def _end_waits() -> None:
    """Raise Interrupted wherever this process waits for another one of its own; hivemind waits for the dead as well."""
    from hivemind.utils.mpfuture import MPFuture

    for reference in list((MPFuture._active_futures or {}).values()):
        if (future := reference()) is not None:
            # Its answer has just come, or its loop is over, or it is just being made: then it is ended the next time.
            with contextlib.suppress(InvalidStateError, RuntimeError, AttributeError):
                future.set_exception(Interrupted())
