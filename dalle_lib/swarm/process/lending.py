"""How a lent machine is spared: the settings for it, what its volunteer asks of a running peer, and what may hold one.

A command reaches a running peer by a small file in the peer's folder, its wish, at which the peer looks every second.
"""

import re
import time
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from dalle_lib.files import read_record, write_record
from dalle_lib.swarm.process.month import day_of, require_limits

Reason = Literal["you", "schedule", "battery", "busy", "month"]
"""What may hold a peer; the peers of a run tell each other no other words, and not that of the month."""
REASONS: tuple[str, ...] = get_args(Reason)
WHY = {
    "you": "paused by its volunteer",
    "schedule": "paused: outside of the hours of its volunteer's schedule",
    "battery": "paused: on battery",
    "busy": "paused: other programs use its machine",
}
"""What each of them says of a peer of somebody else. One whose month is used has left, and tells nothing."""
WISH = "wish.json"
DAY_MIN = 24 * 60
LARGEST_NICENESS = 19


@dataclass(frozen=True, kw_only=True)
class LendingSettings:
    """When the peer computes, and how much of the machine it takes.

    While it is paused, it stays in the run and keeps its memory; only when its month's traffic is used, it leaves.
    """

    between: tuple[str, ...] = ()
    """Compute only between these times of this machine's clock: 22:00-07:00, or several. Outside of them the peer is
    paused. Without it, the peer computes at any time."""
    only_when_idle: bool = False
    """Compute only while other programs leave the processor alone: less than a fifth of all cores' time, for a minute.
    Keys, the mouse and the load of a GPU are not looked at."""
    not_on_battery: bool = False
    """Compute only while the machine is plugged in, or has no battery."""
    niceness: int = 10
    """How far computing stands back behind other programs: 0 not at all, 19 as far as can be. Answering other peers
    never does."""
    duty: float = 1.0
    """Share of the time in which the peer computes: 0.5 leaves the processor or the GPU to you half of the time."""
    gpu_share: float = 1.0
    """Share of each GPU's memory that computing takes at most: 0.5 leaves half of it to you. `duty` limits time."""
    max_upload_mbps: float | None = None
    """Mbit/s that the peer sends to others at most, in rounds and to newcomers: each message goes at full speed, and
    the next one waits. Below 50 it averages for others only where too few others can. Each of your peers has this
    limit for itself."""
    monthly_gb: float | None = None
    """GB that all your peers on this machine may send and receive in a calendar month. When they are used, this peer
    ends its epoch and leaves. It comes back by itself in the next month, if its program is still open and no
    --max-minutes is set. Tensors and data count, the hash table does not."""

    @property
    def spans(self) -> tuple["Span", ...]:
        """The times between which it computes; none for always. Raises ValueError for what is no time."""
        return tuple(map(Span.of, self.between))

    @property
    def hours_a_day(self) -> float:
        """Hours of a day in which its schedule lets it compute."""
        spans = self.spans
        return sum(not spans or any(span.holds(minute) for span in spans) for minute in range(DAY_MIN)) / 60


def require_lending(settings: LendingSettings) -> None:
    """Raise ValueError if one of these settings cannot be."""
    _ = settings.spans
    require_limits(settings.max_upload_mbps, settings.monthly_gb)
    if not (type(settings.niceness) is int and 0 <= settings.niceness <= LARGEST_NICENESS):
        raise ValueError(f"niceness must be a whole number from 0 to {LARGEST_NICENESS}, but is {settings.niceness}.")
    for name in "duty", "gpu_share":
        if not 0 < (share := getattr(settings, name)) <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, but is {share}.")


@dataclass(frozen=True)
class Span:
    """A part of each day: minutes from midnight by the clock on the wall. It passes midnight if it ends earlier."""

    start: int
    end: int

    @classmethod
    def of(cls, text: str) -> "Span":
        """Return the span of a text such as 22:00-07:00. Raises ValueError for another text."""
        found = re.fullmatch(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", text.strip())
        *times, last_minute = map(int, found.groups()) if found else (DAY_MIN,) * 4
        hour, minute, last_hour = times
        start, end = 60 * hour + minute, 60 * last_hour + last_minute
        is_right = start < DAY_MIN and end <= DAY_MIN and minute < 60 and last_minute < 60
        if not is_right or start == end % DAY_MIN:
            raise ValueError(
                f"expected two different times of the day to compute between, such as 22:00-07:00, but got {text!r}. "
                "Leave it out to compute all day."
            )
        return cls(start, end % DAY_MIN)

    def holds(self, minute: int) -> bool:
        """Return whether a minute of the day lies in it."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def is_open(spans: tuple[Span, ...], now: float, zone: tzinfo | None = None) -> bool:
    """Return whether a time, in seconds since 1970, lies in one of these spans, or there are none.

    `zone` is that of the clock on the wall; None for this machine's. When it is changed for summer, the clock decides.
    """
    here = datetime.fromtimestamp(now, zone)
    return not spans or any(span.holds(60 * here.hour + here.minute) for span in spans)


@lru_cache(maxsize=4)
def _opens(spans: tuple[Span, ...], minute: int, zone: tzinfo | None) -> float:
    # Minute by minute: an hour that summer time leaves out, or brings twice, needs no rule of its own.
    later = (60.0 * (minute + number) for number in range(1, 3 * DAY_MIN))
    return next(at for at in later if is_open(spans, at, zone))


def opens_at(spans: tuple[Span, ...], now: float, zone: tzinfo | None = None) -> float:
    """Return when the next of these spans begins after `now`, in seconds since 1970; there is at least one."""
    return _opens(spans, int(now // 60), zone)


@dataclass(frozen=True)
class Hold:
    """What holds a peer."""

    reason: Reason
    until: float | None = None
    """When it goes on by itself, in seconds since 1970, if that is known."""


def hold_in_words(hold: Hold, now: float | None = None, zone: tzinfo | None = None) -> str:
    """Return what holds a peer of one's own: `paused until 22:00: your schedule`."""
    if hold.reason == "month" and hold.until is not None:
        return f"paused until {day_of(hold.until)}: this month's traffic is used"
    if hold.reason != "schedule" or hold.until is None:
        return {
            "you": "paused by you",
            "schedule": "paused: your schedule",
            "battery": "paused: on battery, until it is plugged in",
        }.get(hold.reason, "paused: other programs use this machine, until they leave it alone")
    at, today = (datetime.fromtimestamp(when, zone) for when in (hold.until, time.time() if now is None else now))
    return f"paused until {at:%H:%M}{'' if at.date() == today.date() else f' ({at:%A})'}: your schedule"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the volunteer asks of a peer."""

    wish: Literal["pause", "finish"]
    """To compute nothing until they say otherwise, or to leave after the present epoch."""
    time: float
    """When they asked: seconds since 1970."""

    def __post_init__(self) -> None:
        if self.wish not in ("pause", "finish") or not isinstance(self.time, int | float):
            raise ValueError(f"expected a wish and its time, but got {self.wish!r} and {self.time!r}")


def wish_of(folder: Path) -> Wish | None:
    """Return what is asked of the peer of a folder, or None. Raises BrokenFile if the file cannot be read."""
    try:
        return read_record(folder / WISH, lambda told: Wish(**told), "`dalle-lib resume` removes it.")
    except FileNotFoundError:
        return None


def ask(folder: Path, wish: Literal["pause", "finish"]) -> None:
    """Ask this of the peer of a folder; a running one sees it in a second or so, between two batches.

    A pause lasts over the peer's next starts. `take_back` ends either.
    """
    write_record(folder / WISH, Wish(wish=wish, time=time.time()))


def take_back(folder: Path) -> None:
    """Ask nothing more of the peer of a folder."""
    (folder / WISH).unlink(missing_ok=True)


def forget_finish(folder: Path) -> None:
    """Take back what asked the start before to leave: it has. Raises BrokenFile if the file cannot be read."""
    wish = wish_of(folder)
    if wish is not None and wish.wish == "finish":
        take_back(folder)
