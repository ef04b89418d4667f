"""The monitor of a rehearsed run, and what it has kept of that run and told of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dalle_lib.monitor.contributions import contributions
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.newest import newest_checkpoint
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.events import read_starts, samples_in
from dalle_lib.swarm.process.local import LOCALHOST

CHECKPOINTS = 2.5
"""Checkpoints that are due while the volunteers train, after the first: each costs two of them their upload."""
END_S = 330.0
"""Seconds in which a monitor has examined and sent what is left."""
UNLIKE = 0.1
"""Part of a volunteer's samples by which what they are credited with may differ, besides those of an epoch."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the monitor kept and told."""

    taken: tuple[int, ...]
    """Epochs of its checkpoints."""
    sent: tuple[int, ...]
    """Those of them that are at the stand-in for the Hub."""
    is_sent: bool
    """Whether they were to be sent: not where the run's data are on the true Hub, which peers then need."""
    alarms: tuple[str, ...]
    """What it said was wrong since the first epoch."""
    credited: Mapping[str, float]
    """Samples that each user is credited with."""
    computed: Mapping[str, int]
    """Samples that each volunteer's own events tell."""
    drawn: int | None
    """Epoch of the checkpoint with which `generate --run` drew; None if it could not."""
    told: str
    """Why it could not draw, or ""."""
    spread: float | None = None
    """How far the parameters of most users were apart at most, relative to their norm; None if nobody told it."""

    def unlike(self, epoch_samples: int) -> list[str]:
        """Return the volunteers who are credited with more or less than they computed in whole epochs."""
        pairs = {name: (self.credited.get(name, 0.0), samples) for name, samples in self.computed.items()}
        return [name for name, (has, did) in pairs.items() if abs(has - did) > UNLIKE * did + epoch_samples]


class Watch:
    """The monitor's process, from its beginning until `end`."""

    def __init__(self, run: Path, folder: Path, minutes: float, token: str | None) -> None:
        """Start it for the run in a folder; `minutes` are those of the rehearsal, `token` a Hub token that may write.

        Its files are in monitor of `folder`, and what it says in monitor.log.
        """
        self.run, self.folder = run, folder / "monitor"
        environment = dict(os.environ)
        if token is not None:
            place = folder / "monitor.token"
            with open(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(token)
            environment["HF_TOKEN_PATH"] = str(place)
        command = ["monitor", "--run", str(run), "--folder", str(self.folder), "--host", LOCALHOST, "--status-s", "5"]
        with open(folder / "monitor.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dalle_lib", *command, "--checkpoint-minutes", f"{minutes / CHECKPOINTS:g}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """Let it leave, and return when it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kept(self, peers: Mapping[str, Peer], began: float, is_sent: bool) -> Kept:
        """Return what it has kept, after `end`, and draw with the last of it; `peers` are the volunteers' by name."""
        rows, alarms, credits, spread = [], [], [], None
        if (file := self.folder / "monitor.sqlite").exists():
            with closing(MonitorDatabase(file)) as database:
                rows = database.rows("SELECT epoch, revision FROM checkpoints ORDER BY epoch")
                alarms = database.rows("SELECT * FROM alarms WHERE since > :began ORDER BY since", began=began)
                credits = contributions(database, began, least_s=0.0)
                spread = database.row("SELECT MAX(spread) AS most FROM epochs")["most"]
        drawn, told = self._draw() if is_sent else (None, "")
        return Kept(
            taken=tuple(row["epoch"] for row in rows),
            sent=tuple(row["epoch"] for row in rows if row["revision"] is not None), is_sent=is_sent,
            alarms=tuple(row["told"] for row in alarms), credited={one.user: one.samples for one in credits},
            computed={name: sum(map(samples_in, read_starts(peer.folder))) for name, peer in peers.items()},
            drawn=drawn, told=told, spread=spread,
        )  # fmt: skip

    def _draw(self) -> tuple[int | None, str]:
        """Draw a picture as `generate --run` does, and return the epoch of the checkpoint, or why there is none."""
        from dalle_lib.inference import TextToImage

        try:
            newest = newest_checkpoint(RunCard.load(self.run))
            if newest is None:
                return None, "no checkpoint is there"
            drawing = TextToImage.from_run(self.run, "cpu", clip=False)("a picture", candidates=1, best=1)
            drawing.pictures[0].save(self.folder / "drawn.png")
        except (OSError, ValueError, FloatingPointError) as error:
            return None, in_one_line(error)
        return newest.epoch, ""
