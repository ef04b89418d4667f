"""Reading a recording, which may come from a stranger: line by line, each bounded and of the form it must have."""

import base64
import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from dalle_lib.files import BrokenFile, require_file
from dalle_lib.monitor.recording import ENDING, KEPT_FILES, VERSION
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.organizing.model_page import PROMPTS_FILE
from dalle_lib.run import RunCard
from dalle_lib.run.card import PROTOCOL
from dalle_lib.run.parts import problems_in
from dalle_lib.run.state import require_this_kit
from dalle_lib.swarm.process.events import MAX_TIME
from dalle_lib.swarm.process.signed import LETTERS, SignedRecord
from dalle_lib.version import __version__

MAX_LINE_BYTES = 2**21
"""Bytes of a longer line are not read. The longest holds a picture."""
MAX_BYTES, MAX_RATIO, SLACK_BYTES = 2**30, 100, 2**20
"""Bytes of text in a recording, and for each byte of its file, beyond the slack: honest ones have a fifth of that."""
MAX_SEEN, MAX_FIGURES, MAX_FIGURES_BYTES, MAX_FIGURE = 5000, 40, 4000, 1e15
"""Records of a look, figures of a checkpoint, bytes of them, and the largest of them."""
PEER = "[0-9A-Za-z]{1,100}"
"""A peer's id, which is told on terminals."""
REMEDY = "Get it anew from where it came, or record a run with `dalle-lib monitor --record`."


class Signed(NamedTuple):
    """A record that a peer has signed, so it says; `number` is its place among those of its file."""

    number: int
    record: SignedRecord


class Token(NamedTuple):
    """The access token of a peer."""

    peer: str
    token: bytes


class Look(NamedTuple):
    """Which records were there at a time."""

    time: float
    seen: list[int]
    not_shown: int


class Kept(NamedTuple):
    """What a checkpoint was found to be: a row of the monitor's memory."""

    row: dict[str, Any]


class KeptFile(NamedTuple):
    """A picture, or the prompts, by its name in the monitor's folder."""

    name: str
    data: bytes


Line = Signed | Token | Look | Kept | KeptFile
MOST = {
    Look: (3_000_000, "looks"),
    Token: (2_000_000, "access tokens"),
    Kept: (50_000, "lines about checkpoints"),
    KeptFile: (50_000, "pictures"),
}
"""Lines of each kind that all files of a recording may have together, and what they are.

In 75 days a monitor looks 1,296,000 times, every 5 s; each member's peer has 2,160 access tokens, a new one every 50
minutes, so that 900 peers may be there all the time; and of 3,600 checkpoints, one in 30 minutes, each has at most
three lines and two pictures. How many records there are is bounded between two looks.
"""


@dataclass
class Recording:
    """A recording, in one file or in those of a folder, in the order of their names."""

    files: list[Path]
    card: RunCard
    """The card of its run."""
    cut: str = ""
    """Why reading ended before the end, after it did: the file was cut off, or damaged."""

    @classmethod
    def of(cls, source: Path) -> "Recording":
        """Return a recording. Raises FileNotFoundError, and BrokenFile for what is none or of another version."""
        files = sorted(source.glob(f"*{ENDING}")) if source.is_dir() else [source]
        if not files:
            raise FileNotFoundError(f"expected a recording, but there is no *{ENDING} in {source}. {REMEDY}")
        with _reading(files[0]):
            card = _card(next(_lines(files[0]), b""))
        return cls(files, card)

    def lines(self) -> Iterator[Line]:
        """Yield what is recorded, in the order of time. Raises BrokenFile for what no recorder writes.

        What was cut off or damaged is read up to there, and `cut` says so.
        """
        counts: Counter[type] = Counter()
        for file in self.files:
            with _reading(file):
                lines, count = _lines(file), 0
                if _card(next(lines, b"")).key != self.card.key:
                    raise ValueError("it is of another run than the first file")
                while (line := self._next(lines, file)) is not None:
                    told = _told(line, count)
                    count += isinstance(told, Signed)
                    counts[type(told)] += 1
                    most, kind = MOST.get(type(told), (math.inf, ""))
                    if counts[type(told)] > most:
                        raise ValueError(f"more than {most:,} {kind}, as in no run")
                    yield told

    def _next(self, lines: Iterator[bytes], file: Path) -> bytes | None:
        try:
            return next(lines, None)
        except (EOFError, OSError, zlib.error) as error:
            self.cut = f"{printable(file.name)} is cut off or damaged: {in_one_line(error)}"
            return None


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError, BrokenFile):
        raise
    except (EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error) as error:
        raise BrokenFile(f"{file} cannot be read as a recording ({in_one_line(error):.300}). {REMEDY}") from error


def _lines(file: Path) -> Iterator[bytes]:
    """Yield whole lines. Raises ValueError for long ones and too many; EOFError, OSError or zlib.error for damage."""
    require_file(file)
    left = min(MAX_BYTES, MAX_RATIO * file.stat().st_size + SLACK_BYTES)
    with gzip.open(file) as text:
        while line := text.readline(MAX_LINE_BYTES + 1):
            left -= len(line)
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"a line of more than {MAX_LINE_BYTES:,} bytes")
            if left < 0:
                raise ValueError("it holds far more text than such a file does")
            if not line.endswith(b"\n"):
                raise EOFError("its last line has no end")
            yield line


def _card(line: bytes) -> RunCard:
    """Return the card in the first line. Raises ValueError, also for a run or a recording of another version."""
    match json.loads(line or b"0"):
        case {"recording": version, "card": str() as text}:
            if version != VERSION:
                raise ValueError(f"expected version {VERSION} of a recording, but it is {version!r:.20}")
            require_this_kit(text, PROTOCOL, __version__)
            try:
                return RunCard.model_validate_json(text)
            except ValidationError as error:
                raise ValueError(problems_in(error)) from error
    raise ValueError("its first line is not that of a recording")


def _told(line: bytes, number: int) -> Line:
    """Return what a line says. Raises ValueError, TypeError or RecursionError for what no recorder writes."""
    match json.loads(line):
        case {"signed": list() as told}:
            return Signed(number, SignedRecord.of(told))
        case {"token": str() as token, "peer": str() as peer} if re.fullmatch(PEER, peer):
            return Token(peer, token.encode(LETTERS))
        case {"look": float() as time, "seen": list() as seen, "not_shown": int() as more}:
            if 0 < time < MAX_TIME and len(seen) <= MAX_SEEN and all(type(each) is int for each in seen) and more >= 0:
                return Look(time, seen, min(more, 10**9))
        case {"checkpoint": {**row}}:
            return Kept(_checked(row))
        case {"file": str() as name, "data": str() as data}:
            if KEPT_FILES.fullmatch(name):
                kept = KeptFile(str(PurePosixPath(name)), base64.b64decode(data, validate=True))
                if name.endswith(PROMPTS_FILE) and not _are_prompts(json.loads(kept.data.decode())):
                    raise ValueError("prompts that no monitor draws")
                return kept
    raise ValueError(f"a line that no recorder writes: {line.decode(errors='replace')!r:.80}")


def _are_prompts(told: Any) -> bool:
    """Return whether these are lists of captions by their names, of which the dashboard shows those that it knows."""
    lists = told.values() if isinstance(told, dict) else [None]
    return all(isinstance(each, list) and all(isinstance(caption, str) for caption in each) for each in lists)


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a checkpoint, if it is one. Raises ValueError otherwise."""
    match row:
        case {"epoch": int() as epoch, "made": float() as made, "sha256": str() as sha256, "bytes": int() as size}:
            is_right = 0 <= epoch <= 10**9 and 0 < made < MAX_TIME and 0 <= size < 2**50 and len(row) == 5
            figures = row["figures"]
            if is_right and re.fullmatch("[0-9a-f]{64}", sha256) and (figures is None or _are_figures(figures)):
                return row
    raise ValueError("a checkpoint of which no monitor tells")


def _are_figures(text: Any) -> bool:
    if not isinstance(text, str) or len(text) > MAX_FIGURES_BYTES:
        return False
    figures = json.loads(text)
    loss = [figures["held_out_loss"], figures["half_width"]] if figures else []
    drawn = figures.get("drawn", {})
    values = [each for value in figures.values() for each in (value.values() if isinstance(value, dict) else [value])]
    are_numbers = all(isinstance(each, int | float) and abs(each) <= MAX_FIGURE for each in [*loss, *values])
    return are_numbers and isinstance(drawn, dict) and len(values) <= MAX_FIGURES
