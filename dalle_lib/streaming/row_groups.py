"""Rows of Parquet, in memory that is bounded whatever the file claims."""

from collections.abc import Mapping
from io import IOBase

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dalle_lib.streaming.footer import Column, read_footer
from dalle_lib.streaming.pages import decoded_bytes

MAX_GROUP_BYTES = 2**27
"""Bytes of a row group, decoded, beyond which it is not read: 50 times what `write_codes` puts into one of the paper's.
A file of some kilobytes can decode to any size."""
ROW_BYTES = 500
"""Memory that a row takes at least, besides its values."""
_ROWS_AT_A_TIME = 1000


class RowGroups:
    """The row groups of a file of Parquet, of whose columns only those of `kinds` are read, which are text or bytes."""

    def __init__(self, handle: IOBase, kinds: Mapping[str, pa.DataType]) -> None:
        """Read what the file says of itself. Raises ValueError, or Arrow's errors, if it is no Parquet."""
        self._handle, self._kinds = handle, kinds
        metadata, self.groups = read_footer(handle)
        # In dictionaries, equal values are held once, however many rows have them, until their size is known.
        self._parquet = pq.ParquetFile(
            handle, metadata=metadata, pre_buffer=False, page_checksum_verification=True, read_dictionary=list(kinds)
        )
        self.writer: str = metadata.created_by
        self.about: dict[bytes, bytes] = self._parquet.schema_arrow.metadata or {}
        """What its writer says of the whole file."""

    def __len__(self) -> int:
        return len(self.groups)

    def read(self, number: int) -> list[dict]:
        """Return the rows of a row group. Raises ValueError, as soon as it is known, if it exceeds MAX_GROUP_BYTES."""
        group = self.groups[number]
        columns = [column for column in group.columns if column.name in self._kinds]
        _require_room(number, group.rows * ROW_BYTES)
        _require_room(number, sum(max(column.compressed, column.decoded) for column in columns))
        _require_room(number, sum(decoded_bytes(self._bytes_of(column)) for column in columns))
        rows, size = [], 0
        names = [name for name, kind in self._kinds.items() if _values(self._parquet.schema_arrow, name) == kind]
        for batch in self._parquet.iter_batches(_ROWS_AT_A_TIME, row_groups=[number], columns=names, use_threads=False):
            size += len(batch) * ROW_BYTES
            for column in batch.columns:
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                size += pc.sum(lengths).as_py() or 0
            _require_room(number, size)
            decoded = [column.dictionary_decode() for column in batch.columns]
            rows += pa.RecordBatch.from_arrays(decoded, batch.schema.names).to_pylist()
        return rows

    def _bytes_of(self, column: Column) -> bytes:
        self._handle.seek(column.start)
        return self._handle.read(column.compressed)


def _require_room(number: int, size: int) -> None:
    if size > MAX_GROUP_BYTES:
        raise ValueError(
            f"expected row groups of at most {MAX_GROUP_BYTES:,} bytes, but number {number} decodes to {size:,}: write "
            "fewer rows to a group"
        )


def _values(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column's values; None where there is no such column, or its values are of a fixed size."""
    kind = schema.field(name).type if name in schema.names else None
    return kind.value_type if isinstance(kind, pa.DictionaryType) else None
