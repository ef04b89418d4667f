"""What a peer tells about itself: one JSON object per line, appended to a file that other programs may follow."""

import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from dalle_lib.files import is_disk_full
from dalle_lib.one_line import in_one_line

logger = logging.getLogger(__name__)

EVENTS = "events.jsonl"
STARTED = "started"
TAKING, HUB = "taking", "Hub"
"""The event that says how it stands with a state that a peer takes over, and the source that it names for a checkpoint;
for a state of another peer it names that peer's id."""
STAYING = "staying"
"""The event that says that a peer with the run's last epoch stays for whoever takes its state."""
RESTING = "resting"
"""The event that says until when a peer has left because this month's traffic is used; its supervisor writes it."""
AGAIN = "again"
"""The event that says why a peer saves its progress, and is started again by its supervisor; where that waits, it
writes another one, which says until when."""
MAX_TIME = 253402300799.0
"""The last second of the year 9999, since 1970; no clock tells a later one."""
MAX_BYTES = 2**26
"""Size of a file of events of which more than its end is read: some 100,000 epochs."""
MAX_LINE_BYTES = 2**20
"""Length of a line beyond which it is no event."""
MAX_UNWRITTEN = 1000
"""Events that wait for a disk that takes none, at most: the last ones."""
_WAITS_FOR = {errno.EROFS, errno.EIO}
"""What a disk says, besides that it is full, that may take events again: it can only be read, or fails."""


class EventLog:
    """The writer of a peer's events; an event is in the file when `write` returns.

    What a power cut or a full disk has left of a line stays a line of its own, which readers skip.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS

    def write(self, event: str, **fields) -> None:
        """Append one event, with the time in seconds since 1970."""
        self._append(json.dumps({"time": time.time(), "event": event, **fields}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        with open(self._path, "ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read() == b"\n" else b"\n" + line
            file.write(line)


class PatientLog(EventLog):
    """The events of a peer that goes on while the disk takes none, as a full one: they wait until it does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._one_writes, self._unwritten = threading.Lock(), deque(maxlen=MAX_UNWRITTEN)
        self.keeps_from_writing: OSError | None = None
        """Why events wait now; None if none do."""

    def _append(self, line: bytes) -> None:
        with self._one_writes:
            self._unwritten.append(line)
            try:
                while self._unwritten:
                    super()._append(self._unwritten[0])
                    self._unwritten.popleft()
                self.keeps_from_writing = None
            except OSError as error:
                if not (is_disk_full(error) or error.errno in _WAITS_FOR):
                    raise
                self.keeps_from_writing = error
                logger.warning("events wait until the disk takes them: %s", in_one_line(error))


def read_events(folder: Path) -> list[dict]:
    """Return the events of a peer since it last started.

    A line that is still being written is left out, and so is one that is broken (`event_in`).
    """
    return read_starts(folder)[-1]


def has_start(folder: Path, from_byte: int) -> bool:
    """Return whether a peer's events, from a byte on, hold a start: a whole line, not what a full disk left of one."""
    with open(folder / EVENTS, "rb") as file:
        file.seek(from_byte)
        lines = [line for line in file if line.endswith(b"\n")]
    return any(event["event"] == STARTED for event in map(event_in, lines) if event)


def samples_in(events: list[dict]) -> int:
    """Return how many samples a peer has computed, by its events since one start; until it left, in whole epochs."""
    left = [event["samples"] for event in events if event["event"] == "left"]
    return left[-1] if left else sum(event["samples"] for event in events if event["event"] == "epoch")


def is_loss(event: dict) -> bool:
    """Return whether an event says that samples of this peer are in no update of the others, and never will be."""
    return event["event"] == "left_out" and event["samples"] > 0 and event.get("counts_in") is None


def own_id(events: list[dict]) -> str:
    """Return the id of the peer that wrote these events; "" if it has not joined in them."""
    return next((event["peer_id"] for event in events if event["event"] == "joined"), "")


def rounds_with_others(events: list[dict], own: str) -> list[dict]:
    """Return the events of the averages that hold the gradient of the peer `own` and others' gradients, too.

    Shares of what was averaged are those of these rounds. Where a round fails, a peer's update is its own gradient.
    """
    rounds = (event for event in events if event["event"] == "averaged")
    return [event for event in rounds if event["shares"].get(own) and len(event["shares"]) > 1]


def read_starts(folder: Path) -> list[list[dict]]:
    """Return the events of a peer, a list for each time that it was started; one empty list if it never was."""
    return EventReader(folder).starts()


def is_time(value: object) -> bool:
    """Return whether a value that was read from a file is a time: seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME


def event_in(line: bytes) -> dict | None:
    """Return the event that a line holds, or None for a line that is no JSON object with a kind and a time."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("event"), str) and is_time(event.get("time"))
    return event if is_event else None


class EventReader:
    """Reads a peer's events again and again; each time it parses only what the peer has appended since."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS
        self._starts: list[list[dict]] = [[]]
        self._bytes = 0
        """Length of the whole lines that have been read."""

    def starts(self) -> list[list[dict]]:
        """Return what `read_starts` does now. The lists are the reader's own, and grow with its next call."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._bytes:  # another file has taken its place
            self._starts, self._bytes = [[]], 0
        if size > self._bytes:
            self._bytes = max(self._bytes, size - MAX_BYTES)
            for event in filter(None, map(event_in, self._new_lines())):
                if event["event"] == STARTED and self._starts[-1]:
                    self._starts.append([])
                self._starts[-1].append(event)
        return self._starts

    def _new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that have not been read, one of more than MAX_LINE_BYTES in pieces."""
        with open(self._path, "rb") as file:
            file.seek(self._bytes)
            while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                self._bytes += len(line)
                yield line
