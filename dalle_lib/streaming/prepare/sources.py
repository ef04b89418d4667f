"""Where pictures and captions come from: what every kind of source gives."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

FIRST_UNITS = 5
"""Files of a source that are looked at to learn what it tells; the first may be damaged."""
ROW_BYTES = 1000
"""Memory of a row whose picture has not been read yet."""


@dataclass(frozen=True)
class Pair:
    """A picture's file and its caption, as the source has them."""

    picture: bytes
    caption: bytes | str | None
    nsfw: str | None = None
    width: int | None = None
    """Pixels of the original picture, if the source says so; otherwise the picture's own count."""
    height: int | None = None


@dataclass(frozen=True)
class Row:
    """A pair that may not have been read yet."""

    load: Callable[[], Pair]
    """Returns it, in any thread. Raises Unusable."""
    bytes: int = ROW_BYTES
    """Memory that it takes meanwhile."""


@dataclass(frozen=True)
class Unit:
    """A part of a source that is read from its start on: a file, or a picture with its caption."""

    name: str
    """Its place below the source's root, or the source's own file name."""
    bytes: int
    stamp: str
    """What changes when it does."""


@runtime_checkable
class Source(Protocol):
    """Pictures with captions."""

    about: dict[str, object]
    """What the source is, without the place on this machine; the same for a source that has grown."""
    revision: str | None
    """The commit of what is read, if it is on the Hub."""
    tells: tuple[str, ...]
    """Which of `nsfw`, `width` and `height` are known of its pictures."""
    is_permuted: bool
    """Whether units are put into an order of their own, so that neighbours in the source are none in the data set."""
    are_rows: bool
    """Whether each unit is one row."""

    def units(self) -> Iterator[Unit]:
        """Yield all units."""
        ...

    def rows(self, name: str, start: int) -> Iterator[Row]:
        """Yield the rows of a unit from number `start` on. Raises BrokenFile where the unit cannot be read further."""
        ...

    def close(self) -> None:
        """End what is open; no row may be loaded afterwards."""
        ...


@runtime_checkable
class Files(Protocol):
    """Files of a source, on this machine or elsewhere."""

    about: dict[str, object]
    revision: str | None
    root: Path | None
    """The folder below which paths in tables are looked for; None for files that are elsewhere."""

    def units(self) -> Iterator[Unit]:
        """Yield all files."""
        ...

    def open(self, name: str, keep: bool = False) -> AbstractContextManager[Path]:
        """Return the place of a file while the block runs. With `keep`, it will be read again soon."""
        ...


class LocalFiles:
    """Files with some endings in a folder of this machine and the folders in it, or one file."""

    revision = None

    def __init__(self, path: Path, suffixes: tuple[str, ...]) -> None:
        self._path, self._suffixes = path, suffixes
        self.about: dict[str, object] = {}
        self.root: Path | None = path if path.is_dir() else path.parent

    def units(self) -> Iterator[Unit]:
        """Yield the files, sorted by name."""
        files = [self._path] if self._path.is_file() else sorted(files_with(self._path, self._suffixes))
        for file in files:
            yield Unit(file.relative_to(self.root).as_posix(), *size_and_stamp(file))

    def open(self, name: str, keep: bool = False) -> AbstractContextManager[Path]:
        """Return the place of a file."""
        return nullcontext(self.root / name)


def size_and_stamp(file: Path) -> tuple[int, str]:
    """Return the bytes of a file, and what changes when it does; 0 and "none" for a link to nothing."""
    try:
        stat = file.stat()
    except OSError:  # it is left out and counted when it is read
        return 0, "none"
    return stat.st_size, f"{stat.st_size} {stat.st_mtime_ns}"


def files_with(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield files of a folder and the folders in it, but not those whose names begin with a dot."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names if name.lower().endswith(suffixes) and not name.startswith("."))
