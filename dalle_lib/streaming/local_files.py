"""Parts of the files of a data set in a folder of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dalle_lib.files import ANEW, BrokenFile, files_in, require_file
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.fetch import Differs, Gone


class LocalFiles:
    """The files of a folder on this machine, or one file.

    Reading raises Gone for a file that is not there, ValueError for a folder or a pipe in its place, and BrokenFile if
    the disk does not give it.
    """

    def __init__(self, path: Path) -> None:
        self.where, self._path, self.bytes_read = str(path), path, 0

    def names(self) -> list[str]:
        """Return the names of the Parquet files, relative to the folder."""
        if self._path.is_file():
            return [self._path.name]
        return [name for name in files_in(self._path) if name.endswith(".parquet")]

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        with self._there(name) as file:
            return file.stat().st_size

    def read(self, name: str, start: int, length: int, size: int | None = None) -> bytes:
        """Return `length` bytes of a file of `size` bytes, from `start` on. Raises Differs if it has another size."""
        with self._there(name) as file, open(file, "rb") as handle:
            if size is not None and (found := handle.seek(0, 2)) != size:
                raise Differs(f"{self.where}: {name} has {found:,} bytes, not {size:,}")
            handle.seek(start)
            data = handle.read(length)
        self.bytes_read += len(data)
        return data

    def whole(self, name: str, most: int) -> bytes | None:
        """Return a small file, of which at most `most` + 1 bytes are read; None if it is not there."""
        if self._path.is_file() or not self._file(name).is_file():
            return None
        return self.read(name, 0, most + 1)

    def place(self, name: str) -> str:
        """Return where a file is, for messages."""
        return str(self._file(name))

    def close(self) -> None:
        """Do nothing: nothing waits here."""

    def _file(self, name: str) -> Path:
        return self._path if self._path.is_file() else self._path / name

    @contextmanager
    def _there(self, name: str) -> Iterator[Path]:
        try:
            require_file(file := self._file(name))
            yield file
        except FileNotFoundError as error:
            raise Gone(f"{self.where}: {name} is not there") from error
        except OSError as error:
            told = in_one_line(error)
            raise BrokenFile(f"{self.where}: {name:.80} cannot be read ({told:.200}). {ANEW}") from error
