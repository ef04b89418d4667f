"""Tables in Parquet or CSV: a caption in each row, and a picture, or its path or URL."""

import csv
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from dalle_lib.files import BrokenFile, require_file
from dalle_lib.names import did_you_mean
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.footer import read_footer, reader_of
from dalle_lib.streaming.prepare.folders import read_bounded
from dalle_lib.streaming.prepare.pictures import MAX_BYTES, Unusable
from dalle_lib.streaming.prepare.settings import PrepareSettings
from dalle_lib.streaming.prepare.sources import FIRST_UNITS, ROW_BYTES, Files, Pair, Row, Unit
from dalle_lib.streaming.prepare.tars import pair_of
from dalle_lib.streaming.prepare.urls import Fetcher

IMAGES = ("image", "img", "picture", "jpg", "png", "url", "image_url", "path", "image_path", "file_name", "filename")
CAPTIONS = ("caption", "text", "prompt")
"""Usual names of columns, in the order in which they are looked for; capitals do not matter."""
TOLD = ("NSFW", "nsfw", "original_width", "original_height")
MAX_LINE = 2**20
"""Letters of a line of CSV beyond which a table is damaged."""
MAX_UNPACKED, MAX_RATIO = 2**28, 20
"""Bytes to which a column of a row group may unpack, or else this many times what it has in the file."""
_BATCH = 32


class Tables:
    """Tables of the same columns."""

    is_permuted, are_rows = False, False

    def __init__(self, files: Files, settings: PrepareSettings) -> None:
        """Raises ValueError if a column is not there, or cannot hold what it should."""
        self._files, self._fetcher = files, Fetcher(local_urls=settings.local_urls)
        root = settings.picture_folder or files.root
        self._pictures = None if root is None else Path(root).resolve()
        first, columns = self._first()
        self._image = _find(settings.image_column, IMAGES, columns, "image_column", first)
        self._caption = _find(settings.caption_column, CAPTIONS, columns, "caption_column", first)
        if not _is_text(columns[self._caption]):
            raise ValueError(f"expected text in the column {self._caption!r}, but it has {columns[self._caption]}.")
        self._told = [name for name in TOLD if name in columns]
        self.tells = ("width", "height", "nsfw") if {"NSFW", "nsfw"} & set(columns) else ("width", "height")
        self.about: dict[str, object] = {"kind": "tables", **files.about}
        self.revision = files.revision

    def _first(self) -> tuple[str, dict[str, pa.DataType]]:
        """Return the first table with columns, and these. Raises BrokenFile if there is none among the first few."""
        problem: ValueError = ValueError("expected tables in Parquet or CSV, but found none with columns.")
        for unit in islice(self._files.units(), FIRST_UNITS):
            try:
                with self._files.open(unit.name, keep=True) as path:
                    if columns := _columns(path, unit.name):
                        return unit.name, columns
            except BrokenFile as error:
                problem = error
        raise problem

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
                size = len(data) if isinstance(data, (bytes, str)) else 0
                yield Row(partial(self._load, values), ROW_BYTES + size)

    def close(self) -> None:
        """Close connections to the servers of pictures."""
        self._fetcher.close()

    def _load(self, values: dict) -> Pair:
        told = {name: values[name] for name in self._told} | {"caption": None}
        for name in "original_width", "original_height":  # CSV has text for numbers
            digits = str(told.get(name))
            told[name] = int(digits) if digits.isdecimal() and len(digits) <= 10 else None
        return pair_of(self._picture(values[self._image]), values[self._caption], told)

    def _picture(self, told: object) -> bytes:
        if isinstance(told, dict):  # the Hub's images
            told = told.get("bytes") or told.get("path")
        if isinstance(told, bytes):
            return told
        if not isinstance(told, str) or not told:
            raise Unusable("no picture")
        if told.lower().startswith(("http://", "https://")):
            return self._fetcher.fetch(told)
        if self._pictures is None:
            raise Unusable("picture elsewhere")
        try:
            file = (self._pictures / told).resolve()
            if not file.is_relative_to(self._pictures):
                raise Unusable("path out of the pictures' folder")
            return read_bounded(file, MAX_BYTES)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            raise Unusable("picture file not readable") from error


def _columns(path: Path, name: str) -> dict[str, pa.DataType]:
    kind = "Parquet" if name.lower().endswith(".parquet") else "CSV"
    try:
        require_file(path)
        if kind == "Parquet":
            return {field.name: field.type for field in pq.read_schema(path)}
        with _open_csv(path) as handle:
            return dict.fromkeys(next(csv.reader(_lines(handle), delimiter=_delimiter(name)), []), pa.string())
    except Exception as error:  # readers raise what they like for what strangers made
        raise BrokenFile(f"{name} cannot be read as {kind} ({in_one_line(error):.200}).") from error


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
        require_file(path)
        _require_sane(path)
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
    except Exception as error:  # Arrow raises what it likes for what strangers made
        raise BrokenFile(f"{name} cannot be read as Parquet to its end ({in_one_line(error):.200}).") from error


def _require_sane(path: Path) -> None:
    """Raise ValueError if a column would unpack to far more than pictures, which are compressed, ever do.

    Arrow is not asked about columns: it aborts the process if one byte of them is wrong.
    """
    with open(path, "rb") as handle:
        footer = read_footer(reader_of(handle), handle.seek(0, 2))
    for column in (column for group in footer.groups for column in group.columns):
        if column.decoded > max(MAX_UNPACKED, MAX_RATIO * column.compressed):
            raise ValueError(f"{column.name} would unpack to {column.decoded:,} bytes")


def _without_text(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return rows with a column of text as bytes: one text that is no UTF-8 would be an error for all rows."""
    place = batch.schema.get_field_index(name)
    column = batch.column(place)
    column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    return batch.set_column(place, name, column.cast(pa.large_binary()))


def _csv_rows(path: Path, name: str, wanted: list[str], start: int) -> Iterator[dict]:
    try:
        require_file(path)
        with _open_csv(path) as handle:
            for number, values in enumerate(csv.DictReader(_lines(handle), delimiter=_delimiter(name), restval="")):
                if number >= start:
                    # Bytes that are no UTF-8 came as surrogates, and become what they were, to be counted as such.
                    yield {each: _bytes_if_broken(values[each]) for each in wanted}
    except (csv.Error, OSError, KeyError, ValueError) as error:
        raise BrokenFile(f"{name} cannot be read as CSV to its end ({in_one_line(error):.200}).") from error


def _bytes_if_broken(text: str) -> str | bytes:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape")
    return text


def _open_csv(path: Path) -> TextIO:
    return open(path, newline="", encoding="utf-8-sig", errors="surrogateescape")


def _lines(handle: TextIO) -> Iterator[str]:
    while line := handle.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise csv.Error(f"a line above {MAX_LINE:,} letters")
        yield line


def _delimiter(name: str) -> str:
    return "\t" if name.lower().endswith(".tsv") else ","
