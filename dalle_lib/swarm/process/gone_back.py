"""Whether a run has gone back to an earlier epoch for good, and what is set aside then.

Where a network was cut, the side of most users goes on, and that may be the one in the earlier epoch.
"""

import re
import time
from pathlib import Path

from dalle_lib.run.files import CHECKPOINTS

BACK, BACK_S = 2, 300.0
"""Epochs by which the run must be behind its last checkpoint, and seconds in which it must be at every look: records
live for a minute, peers come and go, and the last checkpoint may be that of the fastest peer."""


class GoneBack:
    """Follows the epoch of most users from one look to the next."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        """The epoch in which they were when they were first found to be behind, and when that was."""

    def look(self, epoch: int, last: int, now: float) -> bool:
        """Return whether the run has gone back for good from the epoch of its `last` checkpoint.

        It has where most users, now in `epoch`, were behind that at all looks for BACK_S, and have gone on to another
        epoch there meanwhile: a side that trains does, records of the dead and peers that wait for a state do not.
        """
        if epoch > last - BACK:
            self._first = None
            return False
        if self._first is None or epoch < self._first[0]:
            self._first = epoch, now
        return epoch > self._first[0] and now - self._first[1] >= BACK_S


def place_aside(folder: Path, epoch: int) -> Path:
    """Return where, in a peer's folder, checkpoints are set aside when its run goes back to an epoch now."""
    return folder / CHECKPOINTS / f"aside-{epoch:07}-{int(time.time())}"


def asides_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return where checkpoints were set aside in a peer's folder, with the epoch to which the run went back, and when.

    The time is in seconds since 1970.
    """
    named = ((place, re.fullmatch(r"aside-([0-9]{7,10})-([0-9]{1,12})", place.name))
             for place in sorted((folder / CHECKPOINTS).glob("aside-*")))  # fmt: skip
    return {place: (int(match[1]), int(match[2])) for place, match in named if match}
