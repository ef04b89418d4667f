"""Rows of a source, read and judged some way ahead of the one that is asked for."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.prepare.journal import Journal, place_of
from dalle_lib.streaming.prepare.pictures import Unusable, open_picture, perceptual_hash, to_square
from dalle_lib.streaming.prepare.settings import Fit
from dalle_lib.streaming.prepare.sources import Row, Source

logger = logging.getLogger(__name__)
MAX_AHEAD_BYTES = 2**28
"""Memory of rows that are read ahead, before they are decoded."""
_BITS = 62
Judged = TypeVar("Judged")


@dataclass(frozen=True)
class Ready:
    """A pair that is kept, with its picture as the VQ-GAN takes it."""

    caption: str
    pixels: np.ndarray
    """uint8 [side, side, 3]."""
    hash: int
    """Its perceptual hash."""
    nsfw: str | None
    width: int
    height: int
    bytes: int
    """Size of the source's file."""

    def split(self, held_out: float) -> str:
        """Return whether the picture is held out, which its perceptual hash alone decides."""
        drawn = place_of(self.hash.to_bytes(8, "big", signed=True)) / 2**_BITS
        return "held_out" if drawn < held_out else "train"


@dataclass(frozen=True)
class Found:
    """A row of a source and where the one after it is."""

    row: Row
    place: int
    """Where it stands among the rows of its file: as good as drawn, but always the same."""
    next_row: tuple[int, int]

    def without_row(self) -> "Found":
        """Return where it is, without the row, whose picture would take memory until its batch is full."""
        return replace(self, row=Row(_damaged))


def judge(row: Row, filters: Filters, side: int, tells_nsfw: bool, fit: Fit = "crop") -> Ready | str:
    """Return a row's picture as a square of `side` pixels (`to_square`), or why the row is left out."""
    try:
        pair = row.load()
        caption = _caption(pair.caption)
        picture, width, height = open_picture(pair.picture)
        if pair.width and pair.height:
            width, height = pair.width, pair.height
        nsfw = (pair.nsfw or "") if tells_nsfw else None
        if (why := filters.why_not(caption, nsfw=nsfw, width=width, height=height)) is not None:
            return why
        square = to_square(picture, side, fit)
    except Unusable as why:
        return str(why)
    return Ready(caption, np.asarray(square), perceptual_hash(square), nsfw, width, height, len(pair.picture))


def judge_for(source: Source, filters: Filters, side: int, fit: Fit) -> Callable[[Row], Ready | str]:
    """Return `judge` for the rows of a source."""
    return partial(judge, filters=filters, side=side, tells_nsfw="nsfw" in source.tells, fit=fit)


def rows_from(source: Source, journal: Journal) -> Iterator[Found]:
    """Yield the rows that are not done. A unit that is damaged gives one last row, which says so."""
    first, done = journal.next_row
    for unit, name in journal.units(first):
        number = done if unit == first else 0
        try:
            for row in source.rows(name, number):
                number += 1
                yield Found(row, place_of(f"{name}#{number}".encode(errors="surrogateescape")), (unit, number))
        except BrokenFile as error:
            logger.warning("the rest of a source's file is left out: %s", in_one_line(error))
            yield Found(Row(_damaged), 0, (unit + 1, 0))


def ahead(
    rows: Iterable[Found], work: Callable[[Row], Judged], workers: int, most: int
) -> Iterator[tuple[Found, Judged]]:
    """Yield each row with what `work` makes of it, in their order; up to `most` rows are worked on meanwhile."""
    waiting: deque[tuple[Found, Future[Judged]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="pictures") as pool:
        try:
            size = 0
            for found in rows:
                waiting.append((found, pool.submit(work, found.row)))
                size += found.row.bytes
                while len(waiting) >= most or (size > MAX_AHEAD_BYTES and waiting):
                    first, made = waiting.popleft()
                    size -= first.row.bytes
                    yield first, made.result()
            while waiting:
                first, made = waiting.popleft()
                yield first, made.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _caption(raw: bytes | str | None) -> str | None:
    """Return a caption without space around it. Raises Unusable if its bytes are no text."""
    if raw is None:
        return None
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
        text.encode()  # JSON can hold halves of letters
    except UnicodeError as error:
        raise Unusable("caption not in UTF-8") from error
    return text.strip().replace("\0", "")


def _damaged() -> None:
    raise Unusable("rest of a damaged source file")
