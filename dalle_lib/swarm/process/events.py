"""What a peer tells about itself: one JSON object a line, appended to a file that anyone may follow."""

import json
import time
from pathlib import Path

EVENTS = "events.jsonl"
STARTED = "started"


class EventLog:
    """Appends events to a peer's file; each is on disk when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS

    def write(self, event: str, **fields) -> None:
        """Append one event with the time of day in seconds."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")


def read_events(folder: Path) -> list[dict]:
    """Return the events of a peer since it last started; a line still being written is left out."""
    file = folder / EVENTS
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    events = [json.loads(line) for line in lines]
    starts = [i for i, event in enumerate(events) if event["event"] == STARTED]
    return events[starts[-1] :] if starts else events
