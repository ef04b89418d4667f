"""What a file of Parquet says of itself, read before and beside Arrow.

Arrow 26 aborts the process if it is asked about a column of which one byte is wrong, so it is not asked.
"""

from dataclasses import dataclass
from io import BytesIO, IOBase
from typing import Any

import pyarrow.parquet as pq

from dalle_lib.streaming.thrift import Thrift

MAX_FOOTER_BYTES = 2**24
"""Bytes that a file may say of itself: 20 times what `write_codes` writes for 5,000 row groups."""
_MARK = b"PAR1"
_GROUPS, _COLUMNS, _ROWS, _ABOUT = 4, 1, 3, 3
"""Fields of a file, a row group and a column, by their numbers in Parquet's definition (parquet.thrift)."""
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


def read_footer(handle: IOBase) -> tuple[pq.FileMetaData, list[Group]]:
    """Return what Arrow makes of a file's last bytes, and its row groups. Raises ValueError if they cannot be."""
    size = handle.seek(0, 2)
    handle.seek(max(0, size - 8))
    end = handle.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MARK or length > size - 12:
        raise ValueError("it does not end as Parquet does: is it whole?")
    if length > MAX_FOOTER_BYTES:
        raise ValueError(f"it says {length:,} bytes of itself, and at most {MAX_FOOTER_BYTES:,} are read")
    handle.seek(size - 8 - length)
    footer = handle.read(length)
    groups = [_group(group) for group in _of(list, Thrift(footer, deepest=8).struct().get(_GROUPS))]
    return pq.read_metadata(BytesIO(_MARK + footer + end)), groups


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
