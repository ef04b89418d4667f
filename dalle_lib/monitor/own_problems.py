"""What is wrong with a monitor's own work: its disk, its peer, checkpoints that are not taken or not sent."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from dalle_lib.files import is_disk_full
from dalle_lib.monitor.alarms import Problem
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.one_line import in_one_line
from dalle_lib.run.files import CHECKPOINTS
from dalle_lib.swarm.process.events import EventReader
from dalle_lib.swarm.process.status import SwarmStatus

BLIND_S = 300.0
"""Seconds without a new status of the monitor's own peer after which it sees nothing; a start takes up to a minute."""
CALM_S = 120.0
"""Seconds without another failure after which one is over."""
CHECKPOINTS_FREE, MIN_FREE_BYTES = 2, 2**26
"""Room on the disk below which it is told: for this many checkpoints of the newest one's size, and at least so many
bytes."""


class OwnProblems:
    """Finds what is wrong, from one look to the next."""

    def __init__(self, place: Path) -> None:
        """`place` is the folder of the monitor's peer."""
        self._place, self._events = place, EventReader(place)
        self.failure: Problem | None = None
        """What could not be written or read lately. It may be told before it is remembered: a disk may be full."""
        self._failed_at, self._status_time, self._changed = 0.0, 0.0, time.monotonic()

    def failed(self, error: Exception) -> Problem | None:
        """Take in that something could not be written or read; return it as a problem if it is a new one."""
        self._failed_at = time.monotonic()
        if self.failure is not None:
            return None
        kind = "disk" if is_disk_full(error) else "monitor"
        self.failure = Problem(kind, "", f"the monitor cannot write: {in_one_line(error)}", time.time())
        return self.failure

    def now(self, status: SwarmStatus | None, database: MonitorDatabase, upload: str, end: str = "") -> list[Problem]:
        """Return what is wrong. `upload` says why nothing is sent, `end` why the run is not finished; or are empty."""
        if time.monotonic() - self._failed_at > CALM_S:
            self.failure = None
        found = [*self._disk(database), *self._checkpoints(database), *self._blind(status)]
        if upload:
            found.append(Problem("upload", "", f"not sent to the Hub: {upload}"))
        if end:
            found.append(Problem("end", "", f"the run has its last epoch, and {end}."))
        return found if self.failure is None else [*found, self.failure]

    def _disk(self, database: MonitorDatabase) -> Iterator[Problem]:
        newest = database.row("SELECT bytes FROM checkpoints ORDER BY epoch DESC LIMIT 1")
        needed = max(MIN_FREE_BYTES, CHECKPOINTS_FREE * (newest["bytes"] if newest else 0))
        if (free := shutil.disk_usage(self._place.parent).free) < needed:
            yield Problem(
                "disk", "", f"the monitor's disk has {free / 1e6:,.0f} MB left, and needs {needed / 1e6:,.0f}."
            )

    def _checkpoints(self, database: MonitorDatabase) -> Iterator[Problem]:
        """Yield why no checkpoint was taken last, or what was set aside and whose states were refused when one was.

        A state that did not come is told the second time in a row: a donor may just have left.
        """
        told = [event for event in self._events.starts()[-1] if _is_of_checkpoints(event)][-2:]
        match told:
            case [*before, {"event": "problem", "kind": str() as kind, "problem": str() as problem}]:
                if kind != "state" or [event["event"] for event in before] == ["problem"]:
                    yield Problem(kind, "", problem)
            case [*_, {"event": "checkpoint", "epoch": int() as epoch, "refused": [*refused], **more}]:
                if isinstance(aside := more.get("aside"), str):
                    yield Problem(
                        "back", "", f"the run has gone back to epoch {epoch:,}, as another part of it goes on: the "
                        f"checkpoints of the part that does not are set aside, in {CHECKPOINTS}/{aside}.",
                    )  # fmt: skip
                for peer in refused:
                    start = database.row(
                        "SELECT name FROM starts WHERE peer = :peer ORDER BY last_seen DESC", peer=peer
                    )
                    name = f"{start['name']} ({peer[-6:]})" if start else peer
                    yield Problem(
                        "donors", peer, f"the state of {name} at epoch {epoch:,} is unlike those of two others."
                    )

    def _blind(self, status: SwarmStatus | None) -> Iterator[Problem]:
        if status is not None and status.time > self._status_time:
            self._status_time, self._changed = status.time, time.monotonic()
        if (blind_s := time.monotonic() - self._changed) > BLIND_S:
            yield Problem("blind", "", f"the monitor's own peer has told nothing for {blind_s / 60:,.0f} minutes.")


def _is_of_checkpoints(event: dict) -> bool:
    return event["event"] == "checkpoint" or (event["event"] == "problem" and event.get("kind") is not None)
