"""A peer's traffic: whether its limit lets it take part in a run, and what it adds to the traffic of the month."""

import contextlib
import ipaddress
import logging
import threading
import time

from dalle_lib.files import BrokenFile
from dalle_lib.hub_http import downloaded
from dalle_lib.one_line import in_one_line
from dalle_lib.planning import Work
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.upload import Upload
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.month import Months, Traffic
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 5.0
"""Seconds between two times that the month's traffic is written: a peer that is killed loses the count of these."""


def needed_mbps(card: RunCard) -> float:
    """Return the Mbit/s below which a peer cannot send its tensors before the others leave it out of a round.

    That is a round of parameters: these travel in 8 bits, as averages do, also where gradients travel in 4.
    """
    return 8e-6 * Work.of(card).answer_bytes / (card.averaging.timeout_s / 2)


def require_traffic(card: RunCard, settings: PeerSettings) -> None:
    """Raise ValueError if a peer can never be in an average of a run because it may not send fast enough.

    Raises BrokenFile if its month has a limit, and what was used of it cannot be read; ValueError if it cannot be
    written, or all of it is used and the peer has no time to wait for the next month.
    """
    if settings.monthly_gb is not None:
        months = Months()
        try:
            used = months.add(Traffic())
        except OSError as error:
            raise ValueError(
                f"expected to count this month's traffic in {months.folder}, but {in_one_line(error)}. Without that "
                "--monthly-gb cannot be kept: let this user write there, or name another folder as XDG_STATE_HOME."
            ) from error
        if settings.max_minutes is not None and used.gigabytes >= settings.monthly_gb:
            raise ValueError(
                f"expected less than the {settings.monthly_gb:g} GB that --monthly-gb allows, but your peers on this "
                f"machine have sent and received {used.gigabytes:.3g} GB this month, and a peer with --max-minutes "
                "does not wait for the next one. Allow more, or leave --max-minutes out."
            )
    needed, limit = needed_mbps(card), settings.max_upload_mbps
    if limit is not None and limit < needed:
        raise ValueError(
            f"expected --max-upload-mbps of at least {_rounded_up(needed):g} in run {card.name!r}, but got {limit:g}: "
            f"a peer sends {Work.of(card).answer_bytes / 1e6:.3g} MB in a round, and the others wait "
            f"{card.averaging.timeout_s / 2:g} s for them. Allow more, or leave it out; to send less in a month, "
            "choose --monthly-gb."
        )


def _rounded_up(number: float) -> float:
    """Return a number of two digits that is not less."""
    rounded = float(f"{number:.1e}")
    return rounded if rounded >= number else float(f"{number * 1.05:.1e}")


class MonthlyTraffic:
    """Adds what this peer sends and receives to the traffic of the month, and knows when the month's limit is reached.

    It counts the tensors of rounds, also of rounds that failed; states; and what comes from the Hub or another server
    of data. It does not count the hash table, nor what else libp2p tells other peers. A peer that listens on this
    machine alone uses no line of a provider: it is counted only if it has a limit.
    """

    def __init__(self, settings: PeerSettings, events: EventLog, months: Months | None = None) -> None:
        """Made before the processes of a peer are forked, which share `upload`."""
        self.upload = Upload(settings.max_upload_mbps)
        self.limit_gb, self._events = settings.monthly_gb, events
        self._is_counted = self.limit_gb is not None or not ipaddress.ip_address(settings.host).is_loopback
        self._months, self._lock, self._one_saves = months or Months(), threading.Lock(), threading.Lock()
        self._saved, self._told = Traffic(), ""
        self.is_saved = False
        """Whether all that had gone and come at the last `save` is in the month's file."""
        self._month, self._used = "", Traffic()
        self._is_over, self._thread = threading.Event(), threading.Thread(target=self._save_again, daemon=True)

    def begin(self) -> None:
        """Save every few seconds from now on, in a thread: call it when all processes of this peer are forked."""
        self._thread.start()

    def end(self) -> None:
        """Save what has gone and come until now, and no more after it."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.save()

    def _save_again(self) -> None:
        while not self._is_over.is_set():
            self.save()
            self._is_over.wait(SAVE_EVERY_S)

    def save(self) -> None:
        """Add what has gone and come since the last time; what cannot be written now is added the next time.

        Any thread may call this. That something cannot be written or read is told once.
        """
        if not self._is_counted:
            return
        with self._one_saves:  # another peer may hold this up, which nobody has to wait for who asks `is_used`
            total, at = self._so_far(), time.time()
            new = Traffic(sent=total.sent - self._saved.sent, received=total.received - self._saved.received)
            month, saved = self._months.file(at).stem, total
            try:
                used = self._months.add(new, at) if new != Traffic() else self._months.used(at)
            except (BrokenFile, OSError) as error:
                used, saved = self._used if month == self._month else Traffic(), self._saved
                self._tell(in_one_line(error))
            with self._lock:
                self._used, self._saved, self._month, self.is_saved = used, saved, month, saved is total

    @property
    def is_used(self) -> bool:
        """Whether this month's limit is reached: by what others had saved a few seconds ago, and this peer by now."""
        if self.limit_gb is None:
            return False
        at = time.time()
        with self._lock:
            used = self._used if self._months.file(at).stem == self._month else Traffic()
            total = self._so_far()
            unsaved = Traffic(sent=total.sent - self._saved.sent, received=total.received - self._saved.received)
        return (used + unsaved).gigabytes >= self.limit_gb

    def _so_far(self) -> Traffic:
        return Traffic(sent=self.upload.sent_bytes, received=self.upload.received_bytes + downloaded.bytes)

    def _tell(self, why: str) -> None:
        if why == self._told:
            return
        logger.warning("this month's traffic cannot be counted: %s", why)
        with contextlib.suppress(OSError):  # a full disk has no room for this, either: it is told when there is some
            self._events.write("problem", peer="", problem=f"this month's traffic cannot be counted: {why}")
            self._told = why
