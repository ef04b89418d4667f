"""Tables in Parquet or CSV: a caption in each row, and a picture, or its path or URL."""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dalle_lib.files import BrokenFile
from dalle_lib.names import did_you_mean
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.prepare.folders import read_bounded
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, Unusable
from dalle_lib.streaming.prepare.sources import ROW_BYTES, Files, Pair, Row, Unit
from dalle_lib.streaming.prepare.tars import pair_of
from dalle_lib.streaming.prepare.urls import Fetcher

IMAGES = ("image", "img", "picture", "jpg", "png", "url", "image_url", "path", "image_path", "file_name", "filename")
CAPTIONS = ("caption", "text", "prompt")
"""Usual names of columns, in the order in which they are looked for; capitals do not matter."""
TOLD = ("NSFW", "nsfw", "original_width", "original_height")
_BATCH = 32


class Tables:
    """Tables of the same columns."""

    is_permuted, are_rows = False, False

    def __init__(self, files: Files, image: str | None, caption: str | None) -> None:
        """Raises ValueError if a column is not there, or cannot hold what it should."""
        self._files, self._fetcher = files, Fetcher()
        first = next(files.units(), None)
        if first is None:
            raise ValueError("expected tables in Parquet or CSV, but found none.")
        with files.open(first.name, keep=True) as path:
            columns = _columns(path, first.name)
        self._image = _find(image, IMAGES, columns, "image_column", first.name)
        self._caption = _find(caption, CAPTIONS, columns, "caption_column", first.name)
        if not _is_text(columns[self._caption]):
            raise ValueError(f"expected text in the column {self._caption!r}, but it has {columns[self._caption]}.")
        self._told = [name for name in TOLD if name in columns]
        self.tells = ("width", "height", "nsfw") if {"NSFW", "nsfw"} & set(columns) else ("width", "height")
        self.about: dict[str, object] = {"kind": "tables", **files.about}
        self.revision = files.revision

    def units(self) -> Iterator[Unit]:
        """Yield the tables."""
        yield from self._files.units()

    def rows(self, name: str, start: int) -> Iterator[Row]:
        """Yield the rows of a table from number `start` on."""
        wanted = [self._image, self._caption, *self._told]
        with self._files.open(name) as path:
            is_parquet = name.lower().endswith(".parquet")
            found = _parquet_rows(path, name, wanted, start) if is_parquet else _csv_rows(path, name, wanted, start)
            for values in found:
                picture = values[self._image]
                data = picture.get("bytes") if isinstance(picture, dict) else picture
                yield Row(partial(self._load, values), ROW_BYTES + len(data or b""))

    def close(self) -> None:
        """Close connections to the servers of pictures."""
        self._fetcher.close()

    def _load(self, values: dict) -> Pair:
        told = {name: values[name] for name in self._told} | {"caption": None}
        for name in "original_width", "original_height":  # CSV has text for numbers
            told[name] = int(told[name]) if str(told.get(name)).isdecimal() else None
        return pair_of(self._picture(values[self._image]), values[self._caption], told)

    def _picture(self, told: object) -> bytes:
        if isinstance(told, dict):  # the Hub's images
            told = told.get("bytes") or told.get("path")
        if isinstance(told, bytes):
            return told
        if not isinstance(told, str) or not told:
            raise Unusable("no picture")
        if told.startswith(("http://", "https://")):
            return self._fetcher.fetch(told)
        if self._files.root is None:
            raise Unusable("picture elsewhere")
        try:
            return read_bounded(self._files.root / told, MAX_BYTES)
        except (OSError, ValueError) as error:
            raise Unusable("picture file not readable") from error


def _columns(path: Path, name: str) -> dict[str, pa.DataType]:
    if name.lower().endswith(".parquet"):
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise BrokenFile(f"{name} cannot be read as Parquet ({in_one_line(error):.200}).") from error
        return {field.name: field.type for field in schema}
    with _open_csv(path) as handle:
        return dict.fromkeys(next(csv.reader(handle, delimiter=_delimiter(name)), []), pa.string())


def _find(name: str | None, usual: tuple[str, ...], columns: dict[str, pa.DataType], option: str, table: str) -> str:
    by_lower = {column.lower(): column for column in reversed(columns)}
    if name in columns:
        return name
    found = next((by_lower[each] for each in usual if each in by_lower), None) if name is None else None
    if found is None:
        expected = f"a column {name!r}" if name else f"one of the columns {', '.join(usual)}"
        hint = did_you_mean(name, columns) if name else ""
        raise ValueError(
            f"expected {expected} in {table}, but it has {', '.join(columns) or 'none'}: {hint}name another {option}."
        )
    return found


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _parquet_rows(path: Path, name: str, wanted: list[str], start: int) -> Iterator[dict]:
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if start >= rows:
                    start -= rows
                    continue
                for batch in file.iter_batches(_BATCH, [number], columns=wanted, use_threads=False):
                    if start < len(batch):
                        yield from _without_text(batch.slice(start), wanted[1]).to_pylist()
                    start = max(0, start - len(batch))
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        raise BrokenFile(f"{name} cannot be read as Parquet to its end ({in_one_line(error):.200}).") from error


def _without_text(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return rows with a column of text as bytes: one text that is no UTF-8 would be an error for all rows."""
    place = batch.schema.get_field_index(name)
    column = batch.column(place)
    column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    return batch.set_column(place, name, column.cast(pa.large_binary()))


def _csv_rows(path: Path, name: str, wanted: list[str], start: int) -> Iterator[dict]:
    try:
        with _open_csv(path) as handle:
            for number, values in enumerate(csv.DictReader(handle, delimiter=_delimiter(name), restval="")):
                if number >= start:
                    # Bytes that are no UTF-8 came as surrogates, and become what they were, to be counted as such.
                    yield {each: _bytes_if_broken(values[each]) for each in wanted}
    except (csv.Error, OSError, KeyError) as error:
        raise BrokenFile(f"{name} cannot be read as CSV to its end ({in_one_line(error):.200}).") from error


def _bytes_if_broken(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape")
    return text


def _open_csv(path: Path):
    return open(path, newline="", encoding="utf-8-sig", errors="surrogateescape")


def _delimiter(name: str) -> str:
    return "\t" if name.lower().endswith(".tsv") else ","
