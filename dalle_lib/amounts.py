"""Amounts in words: so many things, so long a time, and a moment."""

import time


def count(number: int, noun: str) -> str:
    """Return a number and a noun: `1 peer`, `2,192 samples`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def moment(at: float) -> str:
    """Return a time, in seconds since 1970, by the clock of this machine: `2026-12-04 10:45`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def figure(number: float) -> str:
    """Return a number with the digits that count: `0.42`, `6.21`, `1,318`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def length(seconds: float) -> str:
    """Return a time in its largest unit: `3.5 days`, `24.6 minutes`, `12.1 s`."""
    for unit, size in ("days", 86_400), ("hours", 3600), ("minutes", 60):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{figure(seconds)} s"


def duration(seconds: float) -> str:
    """Return a time in words, rounded to what matters: `40 s`, `5 min`, `2 h 10 min`, `3 days 4 h`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{count(days, 'day')} {hours} h"
