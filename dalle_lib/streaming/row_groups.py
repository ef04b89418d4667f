"""Rows of Parquet, in memory that is bounded whatever the file claims."""

from collections.abc import Mapping
from io import IOBase

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dalle_lib.streaming.pages import decoded_bytes

MAX_GROUP_BYTES = 2**27
"""Bytes of a row group, decoded, beyond which it is not read: 50 times what `write_codes` puts into one of the paper's.
A file of some kilobytes can decode to any size."""
ROW_BYTES = 500
"""Memory that a row takes at least, besides its values."""
_ROWS_AT_A_TIME = 1000


def read_group(handle: IOBase, parquet: pq.ParquetFile, number: int, kinds: Mapping[str, pa.DataType]) -> list[dict]:
    """Return the rows of a row group, of which only those columns are read that are of the right kind, text or bytes.

    `parquet` must have been opened on the file `handle` with these columns as dictionaries. Raises ValueError, as soon
    as that is known, if the group exceeds MAX_GROUP_BYTES.
    """
    about = parquet.metadata.row_group(number)
    columns = [about.column(place) for place in range(about.num_columns)]
    columns = [column for column in columns if column.path_in_schema.split(".")[0] in kinds]
    _require_room(number, about.num_rows * ROW_BYTES)
    _require_room(number, sum(max(c.total_compressed_size, c.total_uncompressed_size) for c in columns))
    _require_room(number, sum(decoded_bytes(_column(handle, column)) for column in columns))
    rows, size = [], 0
    names = [name for name, kind in kinds.items() if _values(parquet.schema_arrow, name) == kind]
    for batch in parquet.iter_batches(_ROWS_AT_A_TIME, row_groups=[number], columns=names, use_threads=False):
        size += len(batch) * ROW_BYTES
        for column in batch.columns:
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            size += pc.sum(lengths).as_py() or 0
        _require_room(number, size)
        columns = [column.dictionary_decode() for column in batch.columns]
        rows += pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    return rows


def _column(handle: IOBase, column: pq.ColumnChunkMetaData) -> bytes:
    """Return the bytes of a column that Arrow will read."""
    start, first = column.data_page_offset, column.dictionary_page_offset or 0
    handle.seek(first if 0 < first < start else start)
    return handle.read(column.total_compressed_size)


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
