"""What a peer tells about itself: one JSON object per line, appended to a file that other programs may follow."""

import json
import time
from pathlib import Path

EVENTS = "events.jsonl"
STARTED = "started"


class EventLog:
    """The writer of a peer's events; an event is in the file when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS

    def write(self, event: str, **fields) -> None:
        """Append one event, with the time in seconds since 1970."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")


def read_events(folder: Path) -> list[dict]:
    """Return the events of a peer since it last started. A line that is still being written is left out."""
    return read_starts(folder)[-1]


def samples_in(events: list[dict]) -> int:
    """Return how many samples a peer has computed, by its events since one start; until it left, in whole epochs."""
    left = [event["samples"] for event in events if event["event"] == "left"]
    return left[-1] if left else sum(event["samples"] for event in events if event["event"] == "epoch")


def read_starts(folder: Path) -> list[list[dict]]:
    """Return the events of a peer, a list for each time that it was started; one empty list if it never was."""
    file, starts = folder / EVENTS, [[]]
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    for event in map(json.loads, lines):
        if event["event"] == STARTED and starts[-1]:
            starts.append([])
        starts[-1].append(event)
    return starts
