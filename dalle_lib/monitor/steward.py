"""The run's card as it is now, and the end of the run: read again and again, and finished at its last epoch."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from dalle_lib.monitor.checkpoints import found_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.evaluating import BROKEN
from dalle_lib.monitor.page import facts_in
from dalle_lib.monitor.published import status_of
from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.finishing import LastState, finish_run
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.files import MODEL

logger = logging.getLogger(__name__)

LOOK_S, CARD_EVERY_S = 5.0, 300.0
"""Seconds between two looks at whether the run is over, and between two at its card."""
DELAYS_S = (30.0, 60.0, 120.0, 300.0, 900.0)
"""Seconds until finishing is tried again, after the first failures in a row; the last one after all others."""
FIGURES_S = 1800.0
"""Seconds for which the figures of the last checkpoint are waited for."""
LAST_STATE_S = 900.0
"""Seconds without the state of the last epoch after which that is a problem."""


class Steward:
    """Keeps a run's card as it is now, and finishes the run at its last epoch, from a thread of its own until `close`.

    `folder` is the monitor's, `place` its peer's. The Hub may be away: what fails is tried again.
    """

    def __init__(
        self,
        card: RunCard,
        run: str,
        folder: Path,
        place: Path,
        database: Path,
        token: str | None = None,
        licence: str = "",
        say: Callable[[str], None] = logger.info,
    ) -> None:
        """`card` is that of `run` now."""
        self.card, self.problem = card, ""
        self._run_name, self._folder, self._place, self._database = run, folder, place, database
        self._token, self._licence, self._say = token, licence, say
        self._failures, self._next_try, self._read = 0, 0.0, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 20.0) -> None:
        """End, also in the middle of what the Hub does not answer: the next start goes on."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with closing(MonitorDatabase(self._database)) as database:
            while not self._stop.wait(LOOK_S):
                try:
                    self.look(database)
                except Exception:  # whatever it is, the next look may succeed
                    logger.exception("this look at the run's card failed")

    def look(self, database: MonitorDatabase) -> None:
        """Read the card if that is due, and finish the run if it is over. What fails is in `problem`."""
        now = time.monotonic()
        if now - self._read > CARD_EVERY_S:
            self._read = now
            self._read_card()
        if self.card.state == "finished" or not self._is_over(database, time.time()):
            self.problem = ""
        elif now >= self._next_try and (last := self._last_state(database, time.time())) is not None:
            self._finish(last)

    def _read_card(self) -> None:
        try:
            self.card = RunCard.load(self._run_name, self._token)
        except (OSError, ValueError) as error:
            logger.warning("the run's card stays as it was: %s", in_one_line(error))

    def _is_over(self, database: MonitorDatabase, now: float) -> bool:
        """Return whether the median user has the last epoch, and can have it.

        Since the first epoch that was seen as many rounds as it takes must have had the time to find their groups: a
        crowd that claims the last epoch for a while ends no run.
        """
        if self._run_name in EMBEDDED_RUNS:  # nobody can change their cards
            return False
        total = self.card.optimizer.total_epochs
        first = database.row("SELECT * FROM epochs ORDER BY ended LIMIT 1")
        last = database.row("SELECT * FROM epochs ORDER BY ended DESC, epoch DESC LIMIT 1")
        if last is None or last["epoch"] < total:
            return False
        return now - first["ended"] >= (total - first["epoch"]) * self.card.averaging.matchmaking_s

    def _last_state(self, database: MonitorDatabase, now: float) -> LastState | None:
        """Return the state of the last epoch with what is known of it, or None as long as that is waited for."""
        total = self.card.optimizer.total_epochs
        row = database.row("SELECT * FROM checkpoints WHERE epoch = :total", total=total)
        here = found_in(self._place)
        if row is None or total not in here:
            ended = database.row("SELECT MAX(ended) AS at FROM epochs")["at"]
            if now - ended > LAST_STATE_S:
                newest = f" --model {here[max(here)] / MODEL}" if here else ""
                self.problem = f"nobody has given its state. {self._remedy}{newest}"
            return None
        if row["figures"] == BROKEN:
            self.problem = f"its last checkpoint is broken. {self._remedy} --model FILE"
            return None
        if self.card.checkpoint is not None and self.card.checkpoint.sha256 == row["sha256"]:
            return None  # it was finished, and its organiser has opened it again
        if row["figures"] is None and now - row["made"] < FIGURES_S:
            return None
        return LastState(here[total] / MODEL, total, facts_in(self._folder, status_of(self.card, database, now)))

    def _finish(self, last: LastState) -> None:
        try:
            self.card = finish_run(self._run_name, self._token, last=last, licence=self._licence)
        except Exception as error:  # whatever it is, it is tried again, and the organiser can do it
            self._next_try = time.monotonic() + DELAYS_S[min(self._failures, len(DELAYS_S) - 1)]
            self._failures += 1
            self.problem = f"its card could not be changed ({in_one_line(error)}). {self._remedy}"
            self._read_card()  # it may have been done by its organiser, or another monitor
            return
        self._say(
            f"The run {self.card.name} is finished: its last checkpoint lies beside its card. Thanks to everybody!"
        )

    @property
    def _remedy(self) -> str:
        return f"It is tried again; its organiser can finish it: dalle-lib run finish {self._run_name}"
