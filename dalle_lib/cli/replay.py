"""`dalle-lib replay`."""

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Play a recorded run again, and write its dashboard.

    The folder is then like a monitor's, with the dashboard as a page. `dalle-lib monitor --record` records. Each record
    of a peer is checked by its signature, and refused if it was changed. Without a recording, one that is part of
    dalle-lib is played. For example:

    dalle-lib replay

    dalle-lib replay watched/recordings --folder replayed --minutes 30

    dalle-lib replay --speed 60
    """

    recording: Annotated[Path | None, tyro.conf.Positional] = None
    """A recording, or a folder of them."""
    folder: Path = Path("replayed")
    """Folder for status.json, history.json and pictures; what an earlier replay left there is replaced."""
    minutes: float | None = None
    """Minutes of the recording to play; without it, all."""
    speed: float | None = None
    """Seconds of the recording that pass in each second, and the files follow; without it, the end comes at once."""
    json: bool = False
    """Print what was played as JSON."""

    def run(self) -> None:
        """Play it, write its page, and tell what was refused."""
        for name in "minutes", "speed":
            if (given := getattr(self, name)) is not None and not 0 < given < 1e9:
                raise ValueError(f"expected {name} above 0, but got {given}.")

        from dalle_lib import replay
        from dalle_lib.dashboard.run_page import DASHBOARD, write_run_page

        player = replay.Replay(self.recording or replay.RECORDING, self.folder)
        progress = sys.stderr if self.json else sys.stdout  # JSON stands alone
        played = player.play(self.minutes, self.speed, lambda line: print(line, file=progress, flush=True))
        page = write_run_page(self.folder, self.folder / DASHBOARD)
        if self.json:
            print(json.dumps(vars(played) | {"page": str(page)}, indent=1))
            return
        began, ended = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (played.began, played.ended))
        print(f"The run {played.run} from {began} to {ended} UTC: {played.looks:,} looks, {played.records:,} records.")
        for why, count in played.refused.most_common(10):
            print(f"Refused ({count:,}): {why}.")
        if played.cut:
            print(f"The recording ends early: {played.cut}")
        print(f"The dashboard: {page}, of status.json and history.json beside its folder.")
