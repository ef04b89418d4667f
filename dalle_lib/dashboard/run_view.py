"""What a volunteer wants to know beside their own peer: what the organiser says, their rank, this machine's traffic."""

import logging
import threading
import time
from collections import deque
from pathlib import Path

import psutil

from dalle_lib.amounts import duration
from dalle_lib.files import BrokenFile, read_record
from dalle_lib.monitor.contributions import LISTED_S
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.run import RunCard
from dalle_lib.run.newest import STATUS, USER_COLUMNS, file_of_monitor
from dalle_lib.swarm import Crew, LocalSwarm
from dalle_lib.swarm.process.events import EventReader
from dalle_lib.swarm.process.local import MONITOR
from dalle_lib.swarm.process.month import of_month
from dalle_lib.swarm.process.standing import AT_WORK, Standing

logger = logging.getLogger(__name__)

ASK_EVERY_S = 600.0
"""Seconds between two looks at what the run's monitor has sent to the Hub, which is at most four times an hour."""
WINDOW_S = 10.0
"""Seconds over which traffic is averaged."""
MAX_MESSAGE = 500
"""Letters of the organiser's message, as in a card."""


class RunView:
    """A run as one of its volunteers sees it. Nothing here waits for the Hub: it is asked from a thread."""

    def __init__(self, card: RunCard, crew: Crew | None = None) -> None:
        """`crew` are the volunteer's peers; the monitor of a swarm on this machine writes beside them."""
        self.card = card
        self._file = crew.folder / MONITOR / STATUS if isinstance(crew, LocalSwarm) else None
        self._is_here = self._file is not None
        is_yours = crew is not None and not self._is_here
        self._readers = {peer: EventReader(peer.folder) for peer in crew.peers.values()} if is_yours else {}
        self._told: dict = {}
        self._asked = -ASK_EVERY_S
        self._traffic: deque[tuple[float, int, int]] = deque()

    def status(self) -> dict:
        """Return what the run's monitor told last; nothing where there is none, or none of its words has come yet."""
        if self._file is not None:
            self._take(self._file)
        elif self.card.checkpoints is not None and time.monotonic() - self._asked >= ASK_EVERY_S:
            self._asked = time.monotonic()
            threading.Thread(target=self._ask, daemon=True).start()
        return self._told

    def _take(self, file: Path) -> None:
        try:
            self._told = read_record(file, dict, "The run's monitor writes it anew.")
        except (FileNotFoundError, BrokenFile) as error:
            logger.info("the run's monitor tells nothing: %s", in_one_line(error))

    def _ask(self) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # they would write beside the panel
        try:
            self._take(file_of_monitor(self.card, STATUS))
        except (OSError, ValueError) as error:  # it is asked again later
            logger.info("the run's monitor tells nothing: %s", in_one_line(error))

    def message(self) -> str:
        """Return what the organiser tells volunteers now, or "": as the monitor says, or else the card."""
        told = self.status().get("message", self.card.message)
        return printable(told)[:MAX_MESSAGE] if isinstance(told, str) else ""

    def rank(self, peer_id: str) -> tuple[int, int] | None:
        """Return the rank of the user of a peer by hours of computing, and how many users there are.

        None before the run's monitor lists them, and where it tells nonsense.
        """
        status = self.status()
        try:
            user = next(peer["user"] for peer in status["peers"] if peer["id"] == peer_id)
            rows = (dict(zip(USER_COLUMNS, row, strict=True)) for row in status["users"])
            own = next(row for row in rows if row["user"] == user)
            return int(own["rank"]), int(status["totals"]["users"])
        except (LookupError, TypeError, ValueError, OverflowError, StopIteration):
            return None

    def rank_by_own_count(self, compute_s: float) -> tuple[int, int] | None:
        """Return the rank among the listed users of who has computed so long, as far as they know themselves.

        So who wants no name told, or is not told yet, finds their place without the monitor telling anybody which row
        is theirs: that has at most so many hours. None for less than what is listed, beyond the list, for nonsense.
        """
        status = self.status()
        try:
            hours = [float(dict(zip(USER_COLUMNS, row, strict=True))["compute_s"]) for row in status["users"]]
            before = sum(other > compute_s for other in hours)
            if compute_s < LISTED_S or (before == len(hours) < int(status["totals"]["listed"])):
                return None
            return before + 1, int(status["totals"]["users"])
        except (LookupError, TypeError, ValueError, OverflowError):
            return None

    def facts(self, standing: Standing, peer_id: str | None) -> dict[str, str]:
        """Return a peer's time, its user's rank, this machine's traffic while it works, and the month's, by names."""
        facts = {"your time": duration(standing.totals.seconds)}
        if peer_id is not None and (found := self.rank(peer_id)) is not None:
            facts[f"your rank of {found[1]:,}"] = f"{found[0]:,}"
        elif (found := self.rank_by_own_count(compute_s := self._compute_s(standing))) is not None:
            facts[f"your rank of {found[1]:,}"] = f"about {found[0]:,}"
        elif compute_s < LISTED_S and self.status():
            facts["your rank"] = f"after {duration(LISTED_S)} of computing"
        if standing.state in AT_WORK and (traffic := self.traffic_mbps()) is not None:
            facts["Mbit/s up / down"] = " / ".join(f"{mbps:.1f}" for mbps in traffic)
        if standing.max_upload_mbps is not None:
            facts["Mbit/s up at most"] = f"{standing.max_upload_mbps:g}"
        if not self._is_here or standing.monthly_gb is not None:
            facts |= of_month(standing.monthly_gb)
        return facts

    def _compute_s(self, standing: Standing) -> float:
        """Return how long the volunteer's peers here have computed: those of the crew, or the one that is shown."""
        all_peers = (Standing.of(peer, reader) for peer, reader in self._readers.items())
        return sum(each.totals.compute_s for each in all_peers) or standing.totals.compute_s

    def traffic_mbps(self) -> tuple[float, float] | None:
        """Return how many Mbit/s this machine sends and receives, over the last seconds; None before the second look.

        In a swarm on this machine it is what its programs send each other.
        """
        try:
            counters = psutil.net_io_counters(pernic=True)
        except OSError:  # a sandbox that does not tell
            return None
        names = [name for name in counters if name.startswith("lo") == self._is_here]
        sent, received = (sum(getattr(counters[name], f"bytes_{way}") for name in names) for way in ("sent", "recv"))
        self._traffic.append((time.monotonic(), sent, received))
        while len(self._traffic) > 2 and self._traffic[1][0] < self._traffic[-1][0] - WINDOW_S:
            self._traffic.popleft()
        first, last = self._traffic[0], self._traffic[-1]
        if (seconds := last[0] - first[0]) <= 0 or not names:
            return None
        return tuple(8e-6 * max(0, after - before) / seconds for before, after in zip(first[1:], last[1:], strict=True))
