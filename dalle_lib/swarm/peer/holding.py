"""What holds this peer now: its volunteer, its schedule, the battery, or other programs; looked at again and again."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path

import psutil

from dalle_lib.files import BrokenFile, Followed
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.lending import WISH, Hold, LendingSettings, Wish, is_open, opens_at, wish_of

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two looks while something holds the peer; else it looks after each batch."""
BUSY_SHARE = 0.2
"""Share of all cores' time from which on other programs are at work."""
QUIET_S = 60.0
"""Seconds in which they must have taken less, before the peer goes on."""
MEASURE_S = 5.0
"""Seconds over which a share of the time is measured, at least."""


def hold_now(
    settings: LendingSettings,
    wish: Wish | None,
    now: float,
    on_battery: bool = False,
    is_busy: bool = False,
    zone: tzinfo | None = None,
) -> Hold | None:
    """Return what holds a peer at a time, in seconds since 1970, or None; what its volunteer says comes first."""
    if wish is not None and wish.wish == "pause":
        return Hold("you")
    if not is_open(settings.spans, now, zone):
        return Hold("schedule", opens_at(settings.spans, now, zone))
    if settings.not_on_battery and on_battery:
        return Hold("battery")
    return Hold("busy") if settings.only_when_idle and is_busy else None


def on_battery() -> bool:
    """Return whether this machine is known to run on its battery."""
    try:
        battery = getattr(psutil, "sensors_battery", lambda: None)()  # some systems have none
    except OSError:  # as in a container that hides what it reads
        return False
    return battery is not None and battery.power_plugged is False


class Busy:
    """Whether other programs are at work, by shares of the processor's time: at once, and until QUIET_S after."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def note(self, share: float, now: float) -> None:
        """Take in a share that was measured until `now`, in seconds."""
        if share > BUSY_SHARE:
            self._until = now + QUIET_S

    def is_busy(self, now: float) -> bool:
        """Return whether they are."""
        return now < self._until


class OthersLoad:
    """Measures which share of all cores' time goes to programs other than the peers of this machine."""

    def __init__(self) -> None:
        self._busy = Busy()
        self._kinds: dict[int, tuple[float, bool]] = {}
        """When each process that was seen began, and whether it is a peer's."""
        self._spent: dict[int, float] = {}
        """Seconds of the processor that each process of a peer had taken at the last look."""
        self._last: tuple[float, float, float] | None = None
        """When the last look was, and the seconds of all cores by then: at work, and in all."""

    def is_busy(self) -> bool:
        """Return whether other programs are at work. At most every MEASURE_S it measures anew."""
        now = time.monotonic()
        if self._last is None or now - self._last[0] >= MEASURE_S:
            self._measure(now)
        return self._busy.is_busy(now)

    def _measure(self, now: float) -> None:
        times = psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # they are in user's
        work = total - times.idle - getattr(times, "iowait", 0.0)
        own = self._spent_by_peers()
        if self._last is not None and total > self._last[2]:
            share = (work - self._last[1] - own) / (total - self._last[2])
            self._busy.note(share, now)
        self._last = now, work, total

    def _spent_by_peers(self) -> float:
        """Return the seconds that peers of this machine have taken since the last look."""
        spent, kinds = {}, {}
        for process in psutil.process_iter():
            try:
                begun = process.create_time()
                known = self._kinds.get(process.pid)
                is_peer = known[1] if known is not None and known[0] == begun else is_of_peer(process)
                kinds[process.pid] = begun, is_peer
                if is_peer:
                    times = process.cpu_times()
                    spent[process.pid] = times.user + times.system
            except psutil.Error:  # it has ended, or is somebody else's
                continue
        before, self._spent, self._kinds = self._spent, spent, kinds
        return sum(max(0.0, taken - before.get(pid, 0.0 if before else taken)) for pid, taken in spent.items())


def is_of_peer(process: psutil.Process) -> bool:
    """Return whether a process is one of a peer of this kit: it, its supervisor, or what carries its messages."""
    return process.name() == "p2pd" or any("dalle_lib.swarm." in word for word in process.cmdline())


class Holder:
    """Looks at what holds a peer, and tells its events when that changes."""

    def __init__(
        self,
        settings: LendingSettings,
        folder: Path,
        events: EventLog,
        is_on_battery: Callable[[], bool] = on_battery,
        is_busy: Callable[[], bool] | None = None,
        is_month_used: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_month_used` tells whether the peer is to leave after its epoch, and to come back in the next month."""
        self._is_month_used, self.rests = is_month_used, False
        self._settings, self._folder, self._events = settings, folder, events
        self._is_on_battery, self._is_busy = is_on_battery, is_busy or OthersLoad().is_busy
        self._wish = Followed(folder / WISH, self._read)
        self._finishes_after: int | None = None
        self.hold: Hold | None = None
        """What held the peer at the last look."""

    def look(self, epoch: int) -> Hold | None:
        """Return what holds the peer now; `epoch` is its own."""
        settings, wish, before = self._settings, self._wish.now(), self.hold
        is_asked = wish is not None and wish.wish == "finish"
        self.rests = self._is_month_used() and not is_asked
        is_finishing = is_asked or self.rests
        if not is_finishing or self._finishes_after is None:
            self._finishes_after = epoch if is_finishing else None
        self.hold = hold_now(
            settings,
            wish,
            time.time(),
            settings.not_on_battery and self._is_on_battery(),
            settings.only_when_idle and self._is_busy(),
        )
        if is_asked and before == Hold("you"):  # who has paused it needs the machine: it leaves, and computes no more
            self.hold = before
        if self.hold is not None and self.hold != before:
            self._events.write("held", reason=self.hold.reason, until=self.hold.until, epoch=epoch)
        if self.hold is None and before is not None:
            self._events.write("going_on", epoch=epoch)
        return self.hold

    def rest(self, seconds: float, epoch: int, stop: threading.Event) -> None:
        """Return after some seconds, or as soon as `stop` is set or something holds the peer, which it tells."""
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0 and not stop.wait(min(left_s, LOOK_EVERY_S)):
            if left_s > LOOK_EVERY_S and self.look(epoch) is not None:
                return

    def is_finished(self, epoch: int, has_handed_in: bool) -> bool:
        """Return whether the peer was asked to leave after an epoch that has ended, or to which it adds nothing more.

        `has_handed_in` says that while something holds the peer, nothing that it computed is left to be averaged.
        """
        after = self._finishes_after
        return after is not None and (epoch > after or (self.hold is not None and has_handed_in))

    def _read(self) -> Wish | None:
        try:
            return wish_of(self._folder)
        except BrokenFile as error:
            logger.warning("%s", error)
            return None
