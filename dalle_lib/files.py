"""Files that are whole or not there, and known by their hash."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
