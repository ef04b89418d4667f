"""What a file of Parquet says of itself, read before and beside Arrow.

Arrow 26 aborts the process if it is asked about a column of which one byte is wrong, so it is not asked.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, BinaryIO

import pyarrow.parquet as pq

from dalle_lib.streaming.thrift import Thrift

MAX_FOOTER_BYTES = 2**22
"""Bytes that a file may say of itself: four times what `write_codes` writes for 5,000 row groups."""
MAX_COLUMNS = 1000
"""Columns of a file at most: Arrow takes seconds for 60,000, for each row group anew."""
_MARK = b"PAR1"
_SCHEMA, _GROUPS, _TOLD, _COLUMNS, _ROWS, _ABOUT = 2, 4, 5, 1, 3, 3
_KEY, _VALUE = 1, 2
"""Fields of a file, a row group, a column and a pair of metadata, by their numbers in Parquet's parquet.thrift."""
_PATH, _DECODED, _COMPRESSED, _VALUES_AT, _DICTIONARY_AT = 3, 6, 7, 9, 11


@dataclass(frozen=True)
class Column:
    """Where a column of a row group is, and how large, as the file says."""

    name: str
    start: int
    compressed: int
    decoded: int


@dataclass(frozen=True)
class Group:
    """A row group, as the file says."""

    rows: int
    columns: tuple[Column, ...]

    def range_of(self, names: Container[str] | None = None) -> tuple[int, int]:
        """Return the place in the file and the length of the columns of these names, or of all."""
        columns = [column for column in self.columns if names is None or column.name in names]
        start = min((column.start for column in columns), default=0)
        return start, max((column.start + column.compressed for column in columns), default=start) - start


@dataclass(frozen=True)
class Footer:
    """What a file says of itself."""

    size: int
    """Bytes of the whole file."""
    raw: bytes
    """The footer as the file has it, with its length and Parquet's mark at the end."""
    groups: list[Group]
    about: dict[bytes, bytes]
    """What its writer says of the whole file."""

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """What Arrow makes of it."""
        return pq.read_metadata(BytesIO(_MARK + self.raw))


def reader_of(handle: BinaryIO) -> Callable[[int, int], bytes]:
    """Return what reads an open file from a place on, of a length."""

    def read_at(start: int, length: int) -> bytes:
        handle.seek(start)
        return handle.read(length)

    return read_at


def read_footer(read_at: Callable[[int, int], bytes], size: int) -> Footer:
    """Return the footer of a file of `size` bytes, of which `read_at` returns those from a place on, of a length.

    Raises ValueError if it cannot be one.
    """
    end = read_at(max(0, size - 8), min(size, 8))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MARK or length > size - 12:
        raise ValueError("it does not end as Parquet does: is it whole?")
    if length > MAX_FOOTER_BYTES:
        raise ValueError(f"it says {length:,} bytes of itself, and at most {MAX_FOOTER_BYTES:,} are read")
    return parse_footer(read_at(size - 8 - length, length + 8), size)


def parse_footer(raw: bytes, size: int) -> Footer:
    """Return the footer in the last bytes of a file of `size` bytes. Raises ValueError if it cannot be one."""
    told = Thrift(raw[:-8], deepest=8).struct()
    groups = [_group(group) for group in _of(list, told.get(_GROUPS))]
    if max([len(_of(list, told.get(_SCHEMA))), *(len(group.columns) for group in groups)]) > MAX_COLUMNS:
        raise ValueError(f"it says that it has more than {MAX_COLUMNS:,} columns")
    pairs = [_of(dict, pair) for pair in _of(list, told.get(_TOLD, []))]
    about = {_of(bytes, pair.get(_KEY)): pair.get(_VALUE) for pair in pairs}
    return Footer(size, raw, groups, {key: value for key, value in about.items() if isinstance(value, bytes)})


def _group(told: Any) -> Group:
    columns = [_column(_of(dict, _of(dict, column).get(_ABOUT))) for column in _of(list, _of(dict, told).get(_COLUMNS))]
    return Group(_number(told.get(_ROWS)), tuple(columns))


def _column(told: dict) -> Column:
    path = _of(list, told.get(_PATH))
    start, dictionary = _number(told.get(_VALUES_AT)), _number(told.get(_DICTIONARY_AT, 0))
    return Column(
        name=_of(bytes, path[0]).decode(errors="replace") if path else "",
        start=dictionary if 0 < dictionary < start else start,
        compressed=_number(told.get(_COMPRESSED)),
        decoded=_number(told.get(_DECODED)),
    )


def _of(kind: type, told: Any) -> Any:
    if not isinstance(told, kind):
        raise ValueError(
            f"it does not say of itself what Parquet does: expected a {kind.__name__}, but got {told!r:.40}"
        )
    return told


def _number(told: Any) -> int:
    if (number := _of(int, told)) < 0:
        raise ValueError(f"it does not say of itself what Parquet does: got {number}")
    return number
