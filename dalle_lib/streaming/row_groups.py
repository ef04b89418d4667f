"""Rows of Parquet, in memory that is bounded whatever the file claims."""

import hashlib
import json
from collections.abc import Container, Mapping
from io import RawIOBase

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dalle_lib.streaming.footer import Column, Footer
from dalle_lib.streaming.pages import decoded_bytes

MAX_GROUP_BYTES = 2**27
"""Bytes of a row group, decoded, beyond which it is not read: 50 times what `write_codes` puts into one of the paper's.
A file of some kilobytes can decode to any size."""
ROW_BYTES = 500
"""Memory that a row takes at least, besides its values."""
MAX_GROUP_ROWS = MAX_GROUP_BYTES // ROW_BYTES
"""Rows that a row group may claim: the order of rows takes memory for each before it is read."""
HASHES_KEY = b"dalle_lib.row_groups"
"""Metadata that hold a list of the SHA-256 of each row group's bytes."""
_ROWS_AT_A_TIME = 1000


class HashDiffers(ValueError):
    """The bytes of a row group are not those that its file was written with."""


class RowGroups:
    """The row groups of a file of Parquet, of whose columns those of `kinds` are read, where they are of its types."""

    def __init__(self, footer: Footer, kinds: Mapping[str, tuple[pa.DataType, ...]]) -> None:
        """Raises ValueError, or Arrow's errors, if the footer cannot be used."""
        self.footer, self.groups, self._names = footer, footer.groups, tuple(kinds)
        self.writer: str = footer.metadata.created_by
        schema = self._parquet(b"", 0, []).schema_arrow
        self.columns = tuple(name for name in kinds if _type(schema, name) in kinds[name])
        """The columns of `kinds` that the file has."""
        self.types = {name: schema.field(name).type for name in self.columns}
        self._texts = [name for name in self.columns if self.types[name] in (pa.string(), pa.binary())]
        self._hashes = self._told_hashes()

    def __len__(self) -> int:
        return len(self.groups)

    def read(self, number: int, data: bytes) -> list[dict]:
        """Return the rows of a row group, of which `data` are the bytes of `range_of_group`; text comes as bytes.

        Raises ValueError, as soon as it is known, if it exceeds MAX_GROUP_BYTES, or its hash is another.
        """
        start, length = range_of_group(self.footer, number, self._names)
        if len(data) != length:
            raise ValueError(f"expected {length:,} bytes of row group {number}, but got {len(data):,}")
        if self._hashes and hashlib.sha256(data).hexdigest() != self._hashes[number]:
            raise HashDiffers(f"row group {number} is not what the file's own hash says")
        columns = self._wanted(number)
        _require_room(number, self.groups[number].rows * ROW_BYTES)
        _require_room(number, sum(max(column.compressed, column.decoded) for column in columns))
        parts = (data[column.start - start : column.start - start + column.compressed] for column in columns)
        _require_room(number, sum(decoded_bytes(part) for part in parts))
        # In dictionaries, equal values are held once, however many rows have them, until their size is known.
        parquet = self._parquet(data, start, self._texts)
        rows, size = [], 0
        for batch in parquet.iter_batches(
            _ROWS_AT_A_TIME, row_groups=[number], columns=list(self.columns), use_threads=False
        ):
            size += len(batch) * ROW_BYTES + sum(map(_text_bytes, batch.columns))
            _require_room(number, size)
            plain = [_plain(column) for column in batch.columns]
            rows += pa.RecordBatch.from_arrays(plain, batch.schema.names).to_pylist()
        return rows

    def _wanted(self, number: int) -> list[Column]:
        return [column for column in self.groups[number].columns if column.name in self.columns]

    def _parquet(self, data: bytes, start: int, texts: list[str]) -> pq.ParquetFile:
        part = _Part(data, start, self.footer.size)
        return pq.ParquetFile(
            part,
            metadata=self.footer.metadata,
            pre_buffer=False,
            page_checksum_verification=True,
            read_dictionary=texts,
        )

    def _told_hashes(self) -> list[str]:
        """Return the SHA-256 of each row group, as the file says; none if it says nothing."""
        if HASHES_KEY not in self.footer.about:
            return []
        try:
            told = json.loads(self.footer.about[HASHES_KEY])
        except RecursionError as error:
            raise ValueError("the hashes of its row groups lie too deep in lists") from error
        if not (isinstance(told, list) and len(told) == len(self.groups) and all(isinstance(one, str) for one in told)):
            raise ValueError(f"expected the hash of each of {len(self.groups)} row groups, but got {told!r:.60}")
        return told


def require_apart(footer: Footer) -> None:
    """Raise ValueError if row groups claim more than MAX_GROUP_ROWS rows, or the same bytes of the file.

    A file that lists one row group many times would give its rows as often, and take memory for each.
    """
    end = 0
    for start, length, rows in sorted((*group.range_of(), group.rows) for group in footer.groups):
        if rows > MAX_GROUP_ROWS:
            raise ValueError(f"a row group claims {rows:,} rows, and at most {MAX_GROUP_ROWS:,} are read")
        if length and start < end:
            raise ValueError(f"two row groups claim the bytes of the file from {start:,} on")
        end = max(end, start + length)


def range_of_group(footer: Footer, number: int, names: Container[str]) -> tuple[int, int]:
    """Return the place and the length in the file of what is read of a row group for the columns of these names.

    That is all of it if its hash is known. Raises ValueError if it is more than MAX_GROUP_BYTES, or not in the file.
    """
    start, length = footer.groups[number].range_of(None if HASHES_KEY in footer.about else names)
    _require_room(number, length)
    if start + length > footer.size:
        raise ValueError(f"row group {number} lies beyond the file's {footer.size:,} bytes")
    return start, length


class _Part(RawIOBase):
    """A file of `size` bytes, of which only those from `start` on are here."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        self._data, self._start, self._size, self._place = data, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        first = self._place - self._start
        found = self._data[first : first + size] if size >= 0 <= first else b""
        self._place += len(found)
        return found


def _require_room(number: int, size: int) -> None:
    if size > MAX_GROUP_BYTES:
        raise ValueError(
            f"expected row groups of at most {MAX_GROUP_BYTES:,} bytes, but number {number} decodes to {size:,}: write "
            "fewer rows to a group"
        )


def _type(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _text_bytes(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return 0
    return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0


def _plain(column: pa.Array) -> pa.Array:
    if not isinstance(column, pa.DictionaryArray):
        return column
    return column.dictionary.cast(pa.binary()).take(column.indices)
