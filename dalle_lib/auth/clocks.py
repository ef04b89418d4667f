"""Compares this computer's clock with those of other members."""

import logging
import math
from statistics import median

logger = logging.getLogger(__name__)

TOLERATED_S = 30.0
"""Difference between two clocks in seconds that is not worth a warning."""
_MAX_HEARD = 64
"""Peers whose clocks are compared: those heard last."""


def seconds_ahead(asked: float, told: float, now: float, told_in: float = 0.0) -> float:
    """Return the least number of seconds by which our clock is ahead of a peer's; negative if it is behind.

    `asked` and `now` are our times before and after the call, `told` is the peer's time in steps of `told_in` seconds.
    The peer read its clock at some moment in between, so the result is 0 where the two may agree.
    """
    return max(0.0, asked - told - told_in) - max(0.0, told - now)


class ClockWatch:
    """Compares the clocks of members with ours, and logs a warning once when ours or one of theirs is off."""

    def __init__(self) -> None:
        self._ahead_s: dict[bytes, float] = {}
        self._told: set[bytes] = set()
        self._is_off = False

    @property
    def offset_s(self) -> float | None:
        """Seconds by which this computer's clock is ahead of the median of the others; None if none was heard."""
        return -median(self._ahead_s.values()) if self._ahead_s else None

    def hear(self, peer: bytes, user: str, ahead_s: float) -> None:
        """Note that a peer's clock is `ahead_s` seconds ahead of ours; NaN and infinity are ignored."""
        if not math.isfinite(ahead_s):
            return
        self._ahead_s.pop(peer, None)
        self._ahead_s[peer] = ahead_s
        if len(self._ahead_s) > _MAX_HEARD:
            self._ahead_s.pop(next(iter(self._ahead_s)))
        was_off, self._is_off = self._is_off, abs(self.offset_s) > TOLERATED_S
        if self._is_off and not was_off:
            logger.warning(
                "This computer's clock is %s that of %s. Members whose clocks differ by more than a minute refuse each "
                "other: let the network set it (`sudo timedatectl set-ntp true`, or the system's settings).",
                _difference(self.offset_s),
                repr(user) if len(self._ahead_s) == 1 else f"most members ({len(self._ahead_s)} heard)",
            )
        elif not self._is_off and abs(ahead_s) > TOLERATED_S and peer not in self._told:
            self._told = self._told & self._ahead_s.keys() | {peer}
            logger.warning("The clock of %r is %s ours and most members'.", user, _difference(ahead_s))


def _difference(ahead_s: float) -> str:
    return f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
