"""The endless stream of a data set's rows: shuffled by a seed, resumed where it stopped, with receipts of its rows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dalle_lib.files import ANEW
from dalle_lib.streaming.ahead import Ahead
from dalle_lib.streaming.codes import CodesFormat
from dalle_lib.streaming.data_set import DataSet, Values, open_files, row_of
from dalle_lib.streaming.fetch import Closed
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.layouts import CodeRow
from dalle_lib.streaming.order import Order, Window

_MAX_COUNT = 2**63
"""Rows that no stream has drawn, since nothing reads so many."""


@dataclass(frozen=True)
class Receipt:
    """Which rows were drawn: with the data set, anybody can draw them again (`CodeStream.draw`)."""

    data: str
    """SHA-256 of the data set's manifest."""
    seed: int
    part: tuple[int, int]
    """The reader's number, and how many readers share the data set."""
    start: int
    """Rows of the order that were drawn before, in all passes."""
    stop: int
    """Rows of the order that were drawn after. Some of those between may have been left out."""

    def joined(self, later: "Receipt") -> "Receipt | None":
        """Return one receipt for both, or None if `later` does not follow at once."""
        follows = (self.data, self.seed, self.part, self.stop) == (later.data, later.seed, later.part, later.start)
        return Receipt(self.data, self.seed, self.part, self.start, later.stop) if follows else None


class CodeStream:
    """Endless rows of a data set in an order that `seed` decides; each row comes once in a pass.

    A row that cannot be read, is not what its file promises, or does not pass the filters is left out and counted in
    `left_out`. A stream of a `part` (number, of how many) draws from row groups that no stream of another number does.
    Iteration raises ValueError if a whole pass has no row to give, Refused if the server refuses the data, and
    ConnectionError if the network fails for half an hour; it ends after `close`.
    """

    def __init__(self, data: DataSet, *, seed: int, part: tuple[int, int] = (0, 1)) -> None:
        number, readers = part
        if not 0 <= number < readers:
            raise ValueError(f"expected the part of reader number 0 to {readers - 1} of {readers}, but got {number}.")
        self.data, self.seed, self.part = data, seed, (number, readers)
        self._groups = range(number, len(data.groups), readers)
        size = data.manifest.size // max(1, readers)
        rows = [data.groups[group][2] for group in self._groups]
        if not any(rows):
            raise ValueError(
                f"no readable row for reader {number} of {readers} in {data.files.where}: it has {len(data.groups)} "
                "row groups. Were they written by dalle_lib.streaming.write_codes?"
            )
        self._order = Order(rows, size, seed)
        self.position, self.drawn, self.left_out = 0, 0, Counter()
        self._last_good, self._is_closed = 0, False
        self._window: Window | None = None
        self._rows: list[Values] = []
        self._ahead: Ahead[int, list[bytes | str]] | None = None
        self._is_asked = False

    def __iter__(self) -> "CodeStream":
        return self

    def __next__(self) -> CodeRow:
        while not self._is_closed:
            try:
                row = self._next_row()
            except Closed:
                break
            if isinstance(row, CodeRow):
                return row
        raise StopIteration

    def draw(self, receipt: Receipt) -> Iterator[CodeRow]:
        """Yield the rows of a receipt again, whoever drew them.

        Raises ValueError if it is one of other data or cannot be one, and otherwise as iteration does.
        """
        if receipt.data != self.data.manifest.sha256:
            raise ValueError(
                f"the receipt is one of the data {receipt.data!s:.12}, not {self.data.manifest.sha256[:12]}."
            )
        match receipt.start, receipt.stop, receipt.part:
            case start, stop, [int(), int()] if _are_counts(start, stop) and start <= stop:
                pass
            case _:
                raise ValueError(f"expected the receipt of a stream, but got {receipt!r:.300}.")
        again = CodeStream(self.data, seed=receipt.seed, part=receipt.part)
        again.position = again._last_good = receipt.start
        while again.position < receipt.stop:
            if isinstance(row := again._next_row(), CodeRow):
                yield row

    def receipt(self, start: int) -> Receipt:
        """Return the receipt of what was drawn since `position` was `start`."""
        return Receipt(self.data.manifest.sha256, self.seed, self.part, start, self.position)

    def state_dict(self) -> dict:
        """Return where the stream is, as JSON can hold it: whoever loads it draws the very next row."""
        return {**self._same(), "position": self.position, "drawn": self.drawn, "left_out": dict(self.left_out)}

    def load_state_dict(self, state: dict) -> None:
        """Go on where the stream that gave `state` was. Raises ValueError for that of other data, seed or part."""
        own = self._same()
        try:
            told = {name: state[name] for name in own}
            position, drawn, left_out = state["position"], state["drawn"], Counter(dict(state["left_out"]))
            if not _are_counts(position, drawn, *left_out.values()):
                raise ValueError("it does not count rows")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected what CodeStream.state_dict returned, but got {state!r:.100}.") from error
        if told != own:
            raise ValueError(f"the state is that of another stream: expected {own}, but got {told!r:.300}.")
        self.position = self._last_good = position
        self.drawn, self.left_out = drawn, left_out

    def _same(self) -> dict:
        """Return what a stream must have in common with another one to go on with its state."""
        return {"data": self.data.manifest.sha256, "seed": self.seed, "part": list(self.part)}

    def prefetch(self) -> None:
        """Read the next window in a thread from now on, while the last quarter of one is drawn; call it after forking.

        Earlier would be of no use on a link that keeps up, and would read more than is needed where a reader leaves.
        """
        if self._ahead is None:
            self._ahead = Ahead(self._fetch)

    def close(self) -> None:
        """End the stream, whoever waits for its next row, and the thread that reads ahead."""
        self._is_closed = True
        self.data.files.close()
        if self._ahead is not None:
            self._ahead.close()

    def told_left_out(self) -> str:
        """Return what was left out, and of how many, in a line."""
        counts = [f"{count:,} {why}" for why, count in (self.data.unreadable + self.left_out).most_common()]
        return f"{self.left_out.total():,} of {self.drawn:,} rows left out" + (
            f" ({', '.join(counts)})" if counts else ""
        )

    def _next_row(self) -> CodeRow | str:
        """Return the next row, or why it is left out. Raises ValueError if the whole pass before it has no row."""
        if self.position - self._last_good >= self._order.rows:
            raise ValueError(
                f"no readable row in a whole pass of {self.data.files.where}: {self.told_left_out()}. {ANEW}"
            )
        row = row_of(self._next_values())
        self.position += 1
        self.drawn += 1
        if isinstance(row, CodeRow):
            self._last_good = self.position
        else:
            self.left_out[row] += 1
        return row

    def _next_values(self) -> Values:
        if self._window is None or not self._window.start <= self.position < self._window.stop:
            self._load(self._order.window_at(self.position))
        window = self._window
        if (
            self._ahead is not None
            and not self._is_asked
            and window.stop - self.position <= max(1, len(window.rows) // 4)
        ):
            self._ahead.ask(window.stop)
            self._is_asked = True
        return self._rows[window.rows[self.position - window.start]]

    def _load(self, window: Window) -> None:
        self._window, self._rows, self._is_asked = (
            None,
            [],
            False,
        )  # the memory of the old rows is free before new ones come
        fetched = self._fetch(window.start) if self._ahead is None else self._ahead.take(window.start)
        if fetched is None:
            raise Closed("the stream was closed")
        for place, group in enumerate(window.groups):
            self._rows += self.data.rows(self._groups[group], fetched[place])
            fetched[place] = ""
        self._window, self._is_asked = window, False

    def _fetch(self, start: int) -> list[bytes | str]:
        """Return the row groups of the window that begins at a position."""
        return [self.data.fetch(self._groups[group]) for group in self._order.window_at(start).groups]


def _are_counts(*told: object) -> bool:
    return all(type(one) is int and 0 <= one < _MAX_COUNT for one in told)


def stream_codes(
    source: str,
    *,
    seed: int,
    revision: str | None = None,
    expected: CodesFormat | None = None,
    manifest: str | None = None,
    filters: Filters | None = None,
    part: tuple[int, int] = (0, 1),
    token: str | None = None,
) -> CodeStream:
    """Return the endless stream of a data set: a folder, a file, `hf://datasets/owner/name[/folder]` on the Hub, or the
    https address of a folder with a manifest.

    `revision` is a commit, branch or tag on the Hub, main if None. `manifest` is the SHA-256 of the data set's
    manifest. `token` is a Hub token that reads what is private there; without it, huggingface_hub looks for one. `part`
    is a reader's number, and of how many: each reads row groups that no other does. Raises ValueError if `source`
    cannot be read, holds no Parquet file, has another manifest or codes that are not what `expected` says, or does not
    tell what the filters need.
    """
    data = DataSet(open_files(source, revision, token), expected=expected, manifest_sha256=manifest, filters=filters)
    return CodeStream(data, seed=seed, part=part)
