"""Files that are whole or not there, told apart from broken ones, and known by their hash."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dalle_lib.one_line import in_one_line

MAX_RECORD_BYTES = 2**24
"""Size of a file beyond which it is no record."""

Record = TypeVar("Record")


class BrokenFile(ValueError):
    """A file does not hold what belongs there: which file, why, and what to do."""


def read_record(file: Path, make: Callable[[dict], Record], remedy: str) -> Record:
    """Return what `make` makes of the JSON object in a small file; `remedy` says what to do with a broken one.

    Raises FileNotFoundError if nothing is there, and BrokenFile if that is no file, cannot be read, is larger than
    MAX_RECORD_BYTES, or holds nothing of which `make` can make a record.
    """
    try:
        require_file(file)
        if file.stat().st_size > MAX_RECORD_BYTES:
            raise ValueError(f"it has more than {MAX_RECORD_BYTES:,} bytes")
        return make(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BrokenFile(f"{file} cannot be read ({in_one_line(error)}). {remedy}") from error


def require_file(file: Path) -> None:
    """Raise ValueError for a folder, and for a pipe, on which a reader would wait for ever."""
    if file.exists() and not file.is_file():
        raise ValueError("expected a file, but it is a folder or a pipe")


@contextmanager
def replace_file(file: str | Path) -> Iterator[Path]:
    """Yield a path beside `file` to write to; what is there at the end takes the place of `file` at once.

    The path is that of `file` with ".unfinished" at its end; nothing exists there yet, and its folder must exist. Until
    the end, readers find the old file. If the block raises an error, the unfinished file is removed and the old one
    stays. If the program is killed, the old file stays too, and the next call removes what was left unfinished.

    To outlast a power cut as well, call `os.fsync` on the unfinished file before the block ends.
    """
    file = Path(file)
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sha256_of(file: str | Path) -> str:
    """Return the SHA-256 hash of a file, as 64 hexadecimal digits."""
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
