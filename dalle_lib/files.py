"""Files that are whole or not there, told apart from broken ones, and known by their hash."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Generic, TypeVar

from dalle_lib.one_line import in_one_line

MAX_RECORD_BYTES = 2**24
"""Size of a file beyond which it is no record."""
MAX_SECRET_BYTES = 2**16
"""Size of a file beyond which it is no key, identity or access token."""
MAX_END_BYTES = 2**16
"""Size of the end of a log that is shown."""
MAX_WORDS = 300
"""Letters of a library's message that are repeated."""
MAX_REASON = 1000
"""Letters of a refusal that say why: an error may repeat all of a record."""
ANEW = "Get it anew from where it came."
"""What to do with a broken file of somebody else."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space, no more of a quota, no longer a file."""

Record = TypeVar("Record")


class Followed(Generic[Record]):
    """What a file holds now, read anew when the file has changed; None where there is none, or `read` makes none."""

    def __init__(self, file: Path, read: Callable[[], Record | None]) -> None:
        """`read` reads the file. Several processes may follow one file, each with a copy of this."""
        self._file, self._read = file, read
        self._seen: tuple[int, ...] = ()
        self._held: Record | None = None

    def now(self) -> Record | None:
        """Return it."""
        try:
            status = self._file.stat()
            seen = status.st_mtime_ns, status.st_size, status.st_ino
        except FileNotFoundError:
            seen = ()
        if seen != self._seen:
            self._seen, self._held = seen, self._read() if seen else None
        return self._held


def state_folder(name: str) -> Path:
    """Return the kit's folder of a name where programs keep the state of a user, which need not be there.

    Raises FileNotFoundError if the user has no home, and XDG_STATE_HOME names no place, either.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home: name a folder as XDG_STATE_HOME") from error
    return Path(state) / "dalle-lib" / name


class BrokenFile(ValueError):
    """A file does not hold what belongs there: which file, why, and what to do."""


def read_record(file: Path, make: Callable[[dict], Record], remedy: str) -> Record:
    """Return what `make` makes of the JSON object in a small file; `remedy` says what to do with a broken one.

    Raises FileNotFoundError if nothing is there, and BrokenFile if that is no file, cannot be read, is larger than
    MAX_RECORD_BYTES, or holds nothing of which `make` can make a record.
    """
    try:
        return make(json.loads(small_text(file)))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BrokenFile(f"{file} cannot be read ({in_one_line(error):.{MAX_REASON}}). {remedy}") from error


def write_record(file: Path, record: object) -> None:
    """Write a dataclass as the JSON object of a small file, for `read_record`."""
    with replace_file(file) as unfinished:
        unfinished.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def small_text(file: Path) -> str:
    """Return the text of a file of at most MAX_RECORD_BYTES.

    Raises FileNotFoundError if nothing is there, and ValueError if that is no file, is larger, or no text in UTF-8.
    """
    return small_bytes(file, MAX_RECORD_BYTES).decode()


def small_bytes(file: Path, max_bytes: int = MAX_SECRET_BYTES) -> bytes:
    """Return what a file of at most `max_bytes` holds.

    Raises FileNotFoundError if nothing is there, and ValueError if that is no file or is larger.
    """
    require_file(file)
    with open(file, "rb") as handle:
        data = handle.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def end_of(file: Path) -> str:
    """Return the end of a text file, at most MAX_END_BYTES; nothing where no file is."""
    if not file.is_file():
        return ""
    with open(file, "rb") as handle:
        handle.seek(max(0, file.stat().st_size - MAX_END_BYTES))
        return handle.read(MAX_END_BYTES).decode(errors="replace")


@contextmanager
def reading(file: str | Path, what: str, remedy: str = ANEW) -> Iterator[None]:
    """Turn whatever a library raises while it reads `file` into a BrokenFile, which names the file and `what` it is no.

    That the file is not there, may not be read, or that a package is missing, stays as it is.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, ImportError, BrokenFile):
        raise
    except BaseException as error:
        # Readers of a format raise what they like: `tokenizers` raises Exception itself, and Rust's PanicException,
        # which is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BrokenFile(f"{file} cannot be read as {what} ({in_one_line(error):.{MAX_WORDS}}). {remedy}") from error


def require_file(file: Path) -> None:
    """Raise ValueError for a folder, and for a pipe, on which a reader would wait for ever."""
    if file.exists() and not file.is_file():
        raise ValueError("expected a file, but it is a folder or a pipe")


def require_writable(folder: Path, option: str = "--out") -> None:
    """Raise ValueError if a folder cannot be made or written to, as far as that is known without trying it.

    So a wrong one is told before the work for it, and nothing is left of work that fails. `option` names another.
    """
    above = (folder.absolute(), *folder.absolute().parents)
    found = next(each for each in above if each.exists() or each.is_symlink())
    if not (found.is_dir() and os.access(found, os.W_OK)):
        raise ValueError(
            f"expected a folder to write to, but got {folder}, and {found} is no folder that this program may write "
            f"to. Name another {option}."
        )


@contextmanager
def replace_file(file: str | Path, *, durable: bool = False, before: Path | None = None) -> Iterator[Path]:
    """Yield a path beside `file` to write to; what is there at the end takes the place of `file` at once.

    The path is that of `file` with ".unfinished" at its end; nothing exists there yet, and its folder must exist. Until
    the end, readers find the old file. If the block raises an error, the unfinished file is removed and the old one
    stays. If the program is killed, the old file stays too, and the next call removes what was left unfinished.

    `durable` says that this is to outlast a power cut as well: it waits for the disk. The old file is kept as `before`
    where that is given; for a moment it is there and nothing at `file`.
    """
    file = Path(file)
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        if durable:
            _reach_disk(unfinished)
        if before is not None and file.exists():
            os.replace(file, before)
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        with suppress(OSError):  # not every file system can do that with a folder, and the file is whole in any case
            _reach_disk(file.parent)


def _reach_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came of, says that nothing more can be written.

    SQLite has names of its own for that, and libraries in Rust say it in words alone.
    """
    numbers = "|".join(map(str, _FULL))
    while error is not None:
        has_number = getattr(error, "errno", None) in _FULL or re.search(rf"os error ({numbers})\b", str(error))
        if has_number or getattr(error, "sqlite_errorname", "") in ("SQLITE_FULL", "SQLITE_IOERR_WRITE"):
            return True
        error = error.__cause__ or error.__context__
    return False


def sha256_of(file: str | Path) -> str:
    """Return the SHA-256 hash of a file, as 64 hexadecimal digits. Raises ValueError as `require_file` does."""
    require_file(Path(file))
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files in a folder and the folders in it, by their names relative to it with "/", sorted by name.

    Those whose names begin with a dot, and all in folders whose names do, are left out; of no folder there is nothing.
    Raises ValueError if the folder is a file, or holds a link to a folder or out of it (but to the Hub's blobs, if it
    is in the Hub's cache), or what is neither file nor folder.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"expected a folder, but {folder} is none: copy the organiser's whole folder there.")
    real, found = folder.resolve(), {}
    blobs = [above.parent / "blobs" for above in real.parents if above.name == "snapshots"]
    for place, folders, names in os.walk(real):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(place, name) for name in [*folders, *names] if not name.startswith(".")):
            name, target = file.relative_to(real).as_posix(), file.resolve()
            if file.is_symlink() and (target.is_dir() or not (target.is_relative_to(real) or target.parent in blobs)):
                raise ValueError(f"{folder / name} is a link to a folder or out of its own: copy there what it names.")
            if not name.isprintable() or not (file.is_file() or file.is_dir()):
                raise ValueError(f"expected files in {folder}, but got {name!r:.100}, which cannot be one: remove it.")
            if file.is_file():
                found[name] = folder / name
    return dict(sorted(found.items()))


def sha256_of_folder(folder: Path) -> str:
    """Return one hash for `files_in` a folder: of the list that `sha256sum` prints of them.

    Raises ValueError as `files_in` does.
    """
    listed = "".join(f"{sha256_of(file)}  {name}\n" for name, file in files_in(folder).items())
    return hashlib.sha256(listed.encode()).hexdigest()


def copy_folder(source: Path, target: Path) -> None:
    """Copy `files_in` a folder to another one, which holds no others then.

    Raises ValueError as `files_in` does, and, before anything is copied, if there is nothing to copy or other files are
    in `target`.
    """
    files, there = files_in(source), files_in(target)
    if not files:
        raise ValueError(f"expected a folder with files, but found none in {source}: copy it there.")
    if others := [name for name in there if name not in files]:
        raise ValueError(f"expected {target} to hold nothing but what is in {source}, but {others[0]} is there, too.")
    for name, file in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)
