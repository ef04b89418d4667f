"""In which order a reader draws the rows of a data set: decided by a seed, without an end, and found anywhere at once.

A pass holds each row once. Row groups are shuffled and taken a window at a time, and the rows of a window are shuffled
together. The first windows are one group each, so that the first row comes soon; later ones grow with the rows that
were drawn: a window is at most a twelfth of what was used before, so that with a quarter of a window to go and the next
one read ahead, a tenth more has been read than used.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_GROUPS = 16
"""Row groups of a window at most."""
MAX_WINDOW_BYTES = 2**25
"""Bytes of a window's row groups at most, if they are more than one."""
GROWTH = 0.08
"""Share of the rows drawn so far that a window may hold."""


@dataclass(frozen=True)
class Window:
    """Row groups whose rows are shuffled together."""

    start: int
    """Rows drawn before, in all passes."""
    groups: tuple[int, ...]
    rows: np.ndarray
    """The order: numbers of the groups' rows, which are counted through from the first group's first one."""

    @property
    def stop(self) -> int:
        """Rows drawn when all of it are."""
        return self.start + len(self.rows)


class Order:
    """The order in which `seed` draws from row groups of `groups` rows each, which take `size` bytes in all."""

    def __init__(self, groups: Sequence[int], size: int, seed: int) -> None:
        self._rows, self._seed = np.asarray(groups, dtype=np.int64), seed
        self._full = np.flatnonzero(self._rows)
        self.rows = int(self._rows.sum())
        """Rows of a pass."""
        if self.rows == 0:
            raise ValueError("expected at least one row, but the data set has none.")
        self._mean_rows = self.rows / len(self._full)
        self._most = int(np.clip(MAX_WINDOW_BYTES // max(1, size // len(self._full)), 1, MAX_GROUPS))

    def window_at(self, position: int) -> Window:
        """Return the window from which row number `position` is drawn, counted from 0 through all passes."""
        number = position // self.rows
        order = self._full[self._random("groups", number).permutation(len(self._full))]
        start, first = number * self.rows, 0
        while True:
            grown = int(GROWTH * start / self._mean_rows)
            taken = order[first : first + min(max(1, grown), self._most)]
            rows = int(self._rows[taken].sum())
            if position < start + rows:
                return Window(start, tuple(taken.tolist()), self._random("rows", start).permutation(rows))
            start, first = start + rows, first + len(taken)

    def _random(self, what: str, place: int) -> np.random.RandomState:
        # NumPy keeps what RandomState draws for a seed the same for ever; its newer generators may change.
        digest = hashlib.sha256(f"{self._seed} {what} {place}".encode()).digest()
        return np.random.RandomState(np.frombuffer(digest, "<u4"))
