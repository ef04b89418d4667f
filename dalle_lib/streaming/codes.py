"""Files of captions and codes: what they hold, and how they are written and read.

A file is Parquet with the columns of one of `dalle_lib.streaming.layouts`, compressed with Brotli. Its metadata say
what the codes mean, so a run can refuse those of another VQ-GAN, and hold the SHA-256 of each row group, so that a
reader of one row group can check it.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dalle_lib.files import ANEW, MAX_WORDS, BrokenFile, files_in, reading
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.footer import Footer, read_footer, reader_of
from dalle_lib.streaming.layouts import OWN, PAPER, CodeRow, Layout, Reader
from dalle_lib.streaming.packing import Packing
from dalle_lib.streaming.row_groups import ROW_BYTES, RowGroups, range_of_group

METADATA_KEY = b"dalle_lib.codes"
"""Metadata that say what a file's codes mean."""
_WRITER = "parquet-cpp"
"""What Arrow's writer of Parquet is called. Arrow reads the columns of old versions of others past their ends."""
MAX_BYTES = 2**30
"""Memory of the rows that `read_codes` returns at most: that of 120,000 of the paper's pictures."""


@dataclass(frozen=True, kw_only=True)
class CodesFormat:
    """What the codes of a file mean."""

    grid: int
    """Codes on a side of a picture."""
    codebook_size: int
    """Number of different codes; they run from 0 to one less."""
    vqgan_sha256: str
    """Hash of the file of the VQ-GAN that made the codes and alone can show them."""

    @classmethod
    def of(cls, told: object) -> "CodesFormat":
        """Return the format that a JSON object of these fields tells. Raises ValueError if it cannot be one."""
        match told:
            case {"grid": int(grid), "codebook_size": int(size), "vqgan_sha256": str(digest), **more} if (
                0 < grid <= 2**12 and 0 < size <= 2**16 and len(digest) == 64 and not more
            ):
                return cls(grid=grid, codebook_size=size, vqgan_sha256=digest)
        raise ValueError(f"expected a grid, a codebook_size and a vqgan_sha256, but got {told!r:.100}")


class CodesFile:
    """A file of codes whose footer has been read: its row groups, and what becomes of their rows."""

    def __init__(
        self, footer: Footer, name: str, expected: CodesFormat | None = None, filters: Filters | None = None
    ) -> None:
        """Raises BrokenFile if Arrow cannot use the footer, and ValueError if the file does not say what its codes
        mean, says something else than `expected`, or does not tell what the filters need."""
        filters, layout = filters or Filters(), layout_of(footer)
        with _reading_parquet(name):
            self.groups = RowGroups(footer, layout.kinds(filters.needs))
        if not self.groups.writer.startswith(_WRITER):
            raise ValueError(
                f"{name} was not written by dalle_lib.streaming.write_codes, but by {self.groups.writer!r:.80}."
            )
        assumed = expected if layout is PAPER else None
        self.format, packing = _meaning_of(footer.about.get(METADATA_KEY), name, assumed)
        if expected is not None and self.format != expected:
            raise ValueError(f"{name} holds codes of another kind: expected {expected}, but it has {self.format}.")
        filters.require_told(layout.told(self.groups.columns), name)
        are_compressed = layout is PAPER and self.groups.types.get(layout.caption) == pa.binary()
        count, size = self.format.grid**2, self.format.codebook_size
        self._reader = Reader(layout, packing, count, size, are_compressed, filters)

    @property
    def rows_of(self) -> list[int]:
        """The number of rows of each row group."""
        return [group.rows for group in self.groups.groups]

    def read(self, number: int, data: bytes) -> list[dict]:
        """Return what `row` makes rows of, for each row of a row group, whose bytes of `range_of` are `data`.

        Raises as `RowGroups.read` does, and ValueError for another number of rows than the footer says.
        """
        values = self.groups.read(number, data)
        if len(values) != self.rows_of[number]:
            raise ValueError(f"expected {self.rows_of[number]} rows in row group {number}, but got {len(values)}")
        return values

    def row(self, values: Mapping) -> CodeRow | str:
        """Return the row that values of `read` make, or why it is left out."""
        return self._reader.row(values)


def layout_of(footer: Footer) -> Layout:
    """Return which columns a file has."""
    columns = {column.name for group in footer.groups for column in group.columns}
    return PAPER if PAPER.codes in columns and OWN.codes not in columns else OWN


def range_of(footer: Footer, number: int, filters: Filters) -> tuple[int, int]:
    """Return the place and the length in its file of what `CodesFile.read` needs of a row group.

    Raises ValueError as `range_of_group` does.
    """
    return range_of_group(footer, number, layout_of(footer).kinds(filters.needs))


def read_codes(file: str | Path, expected: CodesFormat | None = None) -> list[CodeRow]:
    """Return all rows of a local file in their order, without those that are not what its metadata promises.

    Raises BrokenFile if the file is no Parquet, has rows of more than MAX_BYTES, or a row group of more than
    MAX_GROUP_BYTES, and ValueError if it does not say what its codes mean, or says something else than `expected`.
    """
    with open(file, "rb") as handle:
        read_at = reader_of(handle)
        opened = open_codes(read_at, handle.seek(0, 2), str(file), expected)
        rows, size = [], 0
        with reading(file, "captions and codes"):
            for number in range(len(opened.groups)):
                for values in opened.read(number, read_at(*range_of(opened.groups.footer, number, Filters()))):
                    if isinstance(row := opened.row(values), CodeRow):
                        rows.append(row)
                        size += ROW_BYTES + row.codes.nbytes + sys.getsizeof(row.caption)
                if size > MAX_BYTES:
                    told = f"expected rows of at most {MAX_BYTES:,} bytes in all"
                    raise ValueError(f"{told}, but the first {len(rows):,} take {size:,}: write fewer to a file")
    return rows


# Files are read without Arrow's threads: one that still runs when Python ends may abort it (apache/arrow#34314).
def open_codes(
    read_at: Callable[[int, int], bytes],
    size: int,
    name: str,
    expected: CodesFormat | None = None,
    filters: Filters | None = None,
) -> CodesFile:
    """Return a file of codes of `size` bytes, of which `read_at` returns those from a place on, of a length.

    Raises BrokenFile if it is no Parquet, and otherwise as `CodesFile` does.
    """
    with _reading_parquet(name):
        footer = read_footer(read_at, size)
    return CodesFile(footer, name, expected, filters)


def code_files(source: Path) -> list[Path]:
    """Return the Parquet files of `files_in` a folder, or the one file that `source` is."""
    if source.is_file():
        return [source]
    return [file for name, file in files_in(source).items() if name.endswith(".parquet")]


@contextmanager
def _reading_parquet(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, RecursionError) as error:
        if isinstance(error, OSError) and type(error) is not OSError:  # the network's, or no such file
            raise
        raise BrokenFile(f"{name} cannot be read as Parquet ({in_one_line(error):.{MAX_WORDS}}). {ANEW}") from error


def _meaning_of(told: bytes | None, name: str, assumed: CodesFormat | None) -> tuple[CodesFormat, Packing]:
    """Return what a file's codes mean and how they are packed, of what it tells; `assumed` if it tells nothing."""
    if told is None and assumed is not None:
        return assumed, "uint16"
    if told is None:
        raise ValueError(f"{name} does not say what its codes mean: write it with dalle_lib.streaming.write_codes.")
    with reading(name, "codes, because what it says of them cannot be"):
        match json.loads(told):
            case {"packing": "bits", **rest}:
                return CodesFormat.of(rest), "bits"
            case plain:
                return CodesFormat.of(plain), "uint16"
