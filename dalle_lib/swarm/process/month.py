"""The traffic of a calendar month: what all peers of one user of this machine have sent and received, on disk."""

import calendar
import json
import math
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from dalle_lib.files import BrokenFile, read_record, replace_file, state_folder

GB = 1e9
"""Bytes of a gigabyte, as providers count them."""
LOCK_S = 10.0
"""Seconds to wait for another peer that writes a count, which takes it less than one."""
MAX_BYTES = 10**18
"""Bytes beyond which a count is none."""
BROKEN = (
    "It counts what your peers have sent and received in that month, which --monthly-gb limits. If you know how much "
    'that is, write it there as {"sent": 4000000000, "received": 8000000000}; or remove the file, and they count '
    "from zero."
)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that went over a volunteer's line."""

    sent: int = 0
    received: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value <= MAX_BYTES:
                raise ValueError(f"expected bytes {name} from 0 to 10**18, but got {value!r:.40}")

    @property
    def gigabytes(self) -> float:
        """Both ways together, in GB."""
        return (self.sent + self.received) / GB

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(sent=self.sent + other.sent, received=self.received + other.received)


class Months:
    """The traffic of each month, in a file of its own: months are those of this machine's time zone.

    All peers of one user of this machine add to the same files, whatever their runs and folders, because the contract
    with a provider is for all of them. A file is replaced whole, so that it outlasts a peer that is killed and a power
    cut; there is none for a month in which no peer had traffic or a limit.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is there or made; by default it is `dalle-lib/traffic` where programs keep the state of a user."""
        self.folder = folder or state_folder("traffic")

    def file(self, at: float) -> Path:
        """Return the file of the month of a time, in seconds since 1970."""
        return self.folder / time.strftime("%Y-%m.json", time.localtime(at))

    def used(self, at: float | None = None) -> Traffic:
        """Return the traffic of the month of a time, by default now. Raises BrokenFile, which says what to do."""
        try:
            return read_record(self.file(time.time() if at is None else at), lambda told: Traffic(**told), BROKEN)
        except FileNotFoundError:
            return Traffic()

    def add(self, new: Traffic, at: float | None = None) -> Traffic:
        """Add to the traffic of the month of a time, by default now, and return that of the month with it.

        Raises BrokenFile, and OSError if nothing can be written, or not in LOCK_S; the file is as before then.
        """
        at = time.time() if at is None else at
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            total = self.used(at) + new
            with replace_file(self.file(at), durable=True) as unfinished:
                unfinished.write_text(json.dumps(asdict(total)), encoding="utf-8")
        return total

    def _alone(self) -> AbstractContextManager:
        """Keep the other peers from adding; the lock of one that is killed is open, that of a stopped one is not."""
        return FileLock(self.folder / "lock").acquire(LOCK_S, poll_interval=0.01)


def next_month(at: float) -> float:
    """Return when the month after that of a time begins here; both in seconds since 1970."""
    here = time.localtime(at)
    return time.mktime((here.tm_year, here.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))


def day_of(at: float) -> str:
    """Return the day of a time here: `1 December`."""
    here = time.localtime(at)
    return f"{here.tm_mday} {calendar.month_name[here.tm_mon]}"


def rests_until(limit_gb: float | None) -> float | None:
    """Return when the next month begins if what is allowed for this one is used, in seconds since 1970; else None.

    Raises BrokenFile if what was used cannot be read, and OSError.
    """
    now = time.time()
    is_used = limit_gb is not None and Months().used(now).gigabytes >= limit_gb
    return next_month(now) if is_used else None


def of_month(limit_gb: float | None) -> dict[str, str]:
    """Return this month's traffic of all your peers on this machine by its name, as a short fact.

    It is no fact where there is neither traffic nor a limit, or the file cannot be read.
    """
    try:
        used = Months().used()
    except (BrokenFile, OSError):
        return {}  # `used_in_words` says so
    if limit_gb is None:
        return {"GB this month": f"{used.gigabytes:.2f}"} if used.gigabytes else {}
    return {f"GB this month, of {limit_gb:g}": f"{used.gigabytes:.2f}"}


def used_in_words(limit_gb: float | None = None) -> str:
    """Return this month's traffic of all your peers on this machine, of the limit if there is one, as a line.

    It is "" for no traffic without a limit; for a file that is broken or may not be read, it says so.
    """
    at = time.time()
    try:
        used = Months().used(at)
    except (BrokenFile, OSError) as error:
        return f"This month's traffic is not known: {error}"
    if limit_gb is None and used == Traffic():
        return ""
    of_limit = "" if limit_gb is None else f" of the {limit_gb:g} GB that --monthly-gb allows"
    month = calendar.month_name[time.localtime(at).tm_mon]
    ways = f"{in_gb(used.sent)} sent, {in_gb(used.received)} received"
    return f"Traffic of your peers on this machine in {month}: {in_gb(GB * used.gigabytes)}{of_limit} ({ways})"


def in_gb(size: float) -> str:
    """Return a number of bytes in words, with two digits below a gigabyte."""
    return f"{size / GB:.{0 if size >= 100 * GB else 1 if size >= GB else 2}f} GB"


def require_limits(max_upload_mbps: float | None, monthly_gb: float | None) -> None:
    """Return None if a peer can be limited so. Raises ValueError otherwise."""
    for option, limit, unit in (
        ("--max-upload-mbps", max_upload_mbps, "Mbit/s to send at most"),
        ("--monthly-gb", monthly_gb, "GB a month to send and receive at most"),
    ):
        if limit is not None and not 0 < limit < math.inf:
            raise ValueError(f"expected {unit} above 0 as {option}, but got {limit!r}. Leave it out for no limit.")
