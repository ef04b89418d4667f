"""Writing files of captions and codes, with the hashes by which a reader of one part can check it."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from io import RawIOBase
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dalle_lib.files import replace_file
from dalle_lib.streaming.codes import METADATA_KEY, CodesFormat
from dalle_lib.streaming.layouts import OWN, PAPER, CodeRow, LayoutName
from dalle_lib.streaming.packing import Packing, pack
from dalle_lib.streaming.row_groups import HASHES_KEY

ROWS_PER_GROUP = 1000
_PACKINGS = ("bits", "uint16")
_PARQUET = {"compression": "brotli", "write_page_checksum": True, "write_statistics": False}


def write_codes(
    file: str | Path,
    rows: Iterable[CodeRow],
    codes_format: CodesFormat,
    rows_per_group: int = ROWS_PER_GROUP,
    packing: Packing | None = None,
    layout: LayoutName = "own",
) -> int:
    """Write `rows` to a Parquet file whose metadata holds `codes_format`, and return their number.

    A reader holds one group of `rows_per_group` in memory, and a damaged one is lost whole. Without `packing`, the one
    that makes the first group smaller is taken. Raises ValueError for a row that is not what `codes_format` says; the
    file is written whole or not at all. Memory is taken for one group at a time.
    """
    rows, written, hashes = iter(rows), 0, []
    first = list(islice(rows, rows_per_group))
    if layout != "own":
        packing = "uint16"
    elif packing is None:
        packing = min(_PACKINGS, key=lambda one: _size(_table(first, 0, codes_format, one, layout)))
    about = asdict(codes_format) | ({"packing": packing} if packing != "uint16" else {})
    with replace_file(Path(file)) as unfinished, open(unfinished, "wb") as handle:
        sink, group = _HashingSink(handle), first
        schema = _table(first, 0, codes_format, packing, layout).schema
        schema = schema.with_metadata({METADATA_KEY: json.dumps(about)})
        sink.begin()
        with pq.ParquetWriter(sink, schema, **_PARQUET) as writer:
            while group:
                sink.begin()
                writer.write_table(_table(group, written, codes_format, packing, layout, schema))
                hashes.append(sink.digest())
                written += len(group)
                group = list(islice(rows, rows_per_group))
            writer.add_key_value_metadata({HASHES_KEY.decode(): json.dumps(hashes)})
    return written


def _table(
    rows: list[CodeRow],
    start: int,
    codes_format: CodesFormat,
    packing: Packing,
    layout: LayoutName,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Return the table of `rows`, of which the first is the file's number `start`; with the columns of `schema`."""
    for number, row in enumerate(rows, start):
        _require_fit(number, row.codes, codes_format)
    codes = np.stack([row.codes for row in rows]) if rows else np.zeros((0, codes_format.grid**2), int)
    captions: list = [row.caption for row in rows]
    packed = pack(packing, codes, codes_format.codebook_size)
    if layout == "paper-brotli":
        import brotli

        captions = [brotli.compress(caption.encode()) for caption in captions]
        packed = [brotli.compress(each) for each in packed]
    names = OWN if layout == "own" else PAPER
    columns = {
        names.caption: pa.array(captions, pa.binary() if layout == "paper-brotli" else pa.string()),
        names.codes: pa.array(packed, pa.binary()),
    }
    optional = {"nsfw": pa.string(), "width": pa.int32(), "height": pa.int32()}
    for name, kind in optional.items():
        values = [getattr(row, name) for row in rows]
        column = getattr(names, name)
        if column in schema.names if schema else any(value is not None for value in values):
            columns[column] = pa.array(values, kind)
    return pa.table(columns)


def _size(table: pa.Table) -> int:
    """Return how many bytes a table takes in a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **_PARQUET)
    return sink.tell()


class _HashingSink(RawIOBase):
    """Passes on what is written, and hashes it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self._hash = handle, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._hash.update(data)
        return self._handle.write(data)

    def tell(self) -> int:
        return self._handle.tell()

    def begin(self) -> None:
        self._hash = hashlib.sha256()

    def digest(self) -> str:
        return self._hash.hexdigest()


def _require_fit(number: int, codes: np.ndarray, codes_format: CodesFormat) -> None:
    """Raise ValueError if the codes of a row are not as many as its grid has, or none of the codebook's."""
    size, count = codes_format.codebook_size, codes_format.grid**2
    if codes.shape != (count,) or not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(
            f"expected {count} whole numbers in row {number}, but got {codes.dtype} of shape {list(codes.shape)}."
        )
    if count and not 0 <= codes.min() <= codes.max() < size:
        raise ValueError(
            f"expected codes from 0 to {size - 1} in row {number}, but got {codes.min()} to {codes.max()}: was another "
            "VQ-GAN used?"
        )
