"""Files of captions and codes, and an endless shuffled stream of their rows.

A file is Parquet, compressed with Brotli, with the columns `caption` (string) and `codes` (little-endian uint16 of
one picture, row by row). Its metadata says what the codes mean, so a run can refuse those of another VQ-GAN.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from io import IOBase
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dalle_lib.files import ANEW, MAX_WORDS, BrokenFile, files_in, reading, replace_file
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.row_groups import ROW_BYTES, RowGroups

logger = logging.getLogger(__name__)

_METADATA_KEY = b"dalle_lib.codes"
_DTYPE = np.dtype("<u2")
_COLUMNS = {"caption": pa.string(), "codes": pa.binary()}
_WRITER = "parquet-cpp"
"""What Arrow's writer of Parquet is called. Arrow reads the columns of old versions of others past their ends."""
MAX_BYTES = 2**30
"""Memory of the rows that `read_codes` returns at most: that of 120,000 of the paper's pictures."""
_ATTEMPTS = 8
"""How often the network may fail in one place before the stream does."""


@dataclass(frozen=True, kw_only=True)
class CodesFormat:
    """What the codes of a file mean."""

    grid: int
    """Codes on a side of a picture."""
    codebook_size: int
    """Number of different codes; they run from 0 to one less."""
    vqgan_sha256: str
    """Hash of the file of the VQ-GAN that made the codes and alone can show them."""


@dataclass(frozen=True)
class CodeRow:
    """One picture and its caption."""

    caption: str
    codes: np.ndarray
    """int64 codes of shape [grid x grid], row by row."""


def write_codes(file: str | Path, rows: list[CodeRow], codes_format: CodesFormat, rows_per_group: int = 1000) -> None:
    """Write `rows` to a Parquet file whose metadata holds `codes_format`, in groups of `rows_per_group`.

    A reader holds one group in memory, and a damaged one is lost whole. Raises ValueError for a row that is not what
    `codes_format` says; the file is written whole or not at all.
    """
    for number, row in enumerate(rows):
        _require_fit(number, row.codes, codes_format)
    columns = {
        "caption": pa.array([row.caption for row in rows], pa.string()),
        "codes": pa.array([row.codes.astype(_DTYPE).tobytes() for row in rows], pa.binary()),
    }
    table = pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(asdict(codes_format))})
    with replace_file(Path(file)) as unfinished:
        pq.write_table(table, unfinished, compression="brotli", row_group_size=rows_per_group, write_page_checksum=True)


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


def read_codes(file: str | Path, expected: CodesFormat | None = None) -> list[CodeRow]:
    """Return all rows of a local file in their order, without those that are not what its metadata promises.

    Raises BrokenFile if the file is no Parquet, has rows of more than MAX_BYTES, or a row group of more than
    MAX_GROUP_BYTES, and ValueError if it does not say what its codes mean, or says something else than `expected`.
    """
    with open(file, "rb") as handle:
        groups = _open(handle, str(file), expected)
        codes_format, rows, size = _format_of(groups, str(file)), [], 0
        with reading(file, "captions and codes"):
            for number in range(len(groups)):
                parsed = (_parse(raw, codes_format) for raw in groups.read(number))
                for row in parsed:
                    if row is not None:
                        rows.append(row)
                        size += ROW_BYTES + row.codes.nbytes + sys.getsizeof(row.caption)
                if size > MAX_BYTES:
                    told = f"expected rows of at most {MAX_BYTES:,} bytes in all"
                    raise ValueError(f"{told}, but the first {len(rows):,} take {size:,}: write fewer to a file")
    return rows


class CodeStream:
    """Endless rows of `files` in an order that `seed` decides: files, row groups and rows within each are shuffled.

    A row that is not what its file's metadata promises is dropped and counted in `bad_rows`; a row group that cannot
    be read, or exceeds MAX_GROUP_BYTES, is skipped and counted in `bad_groups`. Iteration raises ValueError if a whole
    pass finds no readable row, or if a file's codes are not what `expected` says.
    """

    def __init__(
        self,
        files: list[str],
        *,
        seed: int,
        expected: CodesFormat | None = None,
        open_file: Callable[[str], IOBase] = lambda file: open(file, "rb"),
    ) -> None:
        if not files:
            raise ValueError("expected at least one Parquet file of codes, but got none.")
        self.files, self.seed, self.expected, self._open_file = files, seed, expected, open_file
        self.bad_rows = self.bad_groups = 0

    def __iter__(self) -> Iterator[CodeRow]:
        order = random.Random(self.seed)
        while True:
            good = 0
            for file in order.sample(self.files, len(self.files)):
                for row in self._rows_of(file, order):
                    good += 1
                    yield row
            if good == 0:
                raise ValueError(
                    f"no readable row in {self.files[0]} and {len(self.files) - 1} other files: {self.bad_rows} bad "
                    f"rows, {self.bad_groups} bad row groups. Were they written by dalle_lib.streaming.write_codes?"
                )

    def _rows_of(self, file: str, order: random.Random) -> Iterator[CodeRow]:
        with _retry(lambda: self._open_file(file), file) as handle:
            groups = _retry(lambda: _open(handle, file, self.expected), file)
            codes_format = _format_of(groups, file)
            for number in order.sample(range(len(groups)), len(groups)):
                rows = self._read_group(groups, number, file)
                for raw in order.sample(rows, len(rows)):
                    row = _parse(raw, codes_format)
                    if row is None:
                        self.bad_rows += 1
                    else:
                        yield row

    def _read_group(self, groups: RowGroups, number: int, file: str) -> list[dict]:
        try:
            return _retry(lambda: groups.read(number), file)
        except (OSError, ValueError, pa.ArrowException) as error:
            logger.warning("skipped row group %d of %s: %s", number, file, in_one_line(error))
            self.bad_groups += 1
            return []


def code_files(source: Path) -> list[Path]:
    """Return the Parquet files of `files_in` a folder, or the one file that `source` is."""
    if source.is_file():
        return [source]
    return [file for name, file in files_in(source).items() if name.endswith(".parquet")]


def stream_codes(
    source: str,
    *,
    seed: int,
    revision: str | None = None,
    expected: CodesFormat | None = None,
    token: str | None = None,
) -> CodeStream:
    """Return the endless stream of a data set: a file, a folder, or `hf://datasets/owner/name[/folder]` on the Hub.

    `revision` is a commit, branch or tag on the Hub, main if None. `token` is a Hub token that reads what is private
    there; without it, huggingface_hub looks for one. Raises ValueError if `source` cannot be read or holds no Parquet
    file; codes that are not what `expected` says are refused while the stream is read.
    """
    if not source.startswith("hf://"):
        if not (files := code_files(Path(source))):
            raise ValueError(f"expected Parquet files in {source}, but found none.")
        return CodeStream([str(file) for file in files], seed=seed, expected=expected)

    from huggingface_hub import HfFileSystem
    from huggingface_hub.errors import HfHubHTTPError

    # The cache of file systems would keep the Hub token, and lists of files, for the rest of the process.
    hub = HfFileSystem(token=token, skip_instance_cache=True)
    try:
        files = _retry(lambda: hub.glob(f"{source.removesuffix('/')}/**/*.parquet", revision=revision), source)
    except (FileNotFoundError, HfHubHTTPError) as error:
        raise ValueError(
            f"{source} cannot be read at revision {revision or 'main'}. Is the name right? A private data set needs a "
            f"Hub token that can read it. {type(error).__name__}: {error}"
        ) from error
    if not files:
        raise ValueError(f"expected Parquet files in {source} at revision {revision or 'main'}, but found none.")
    return CodeStream(
        sorted(files), seed=seed, expected=expected, open_file=lambda file: hub.open(file, revision=revision)
    )


# Files are read without Arrow's threads: one that still runs when Python ends may abort it (apache/arrow#34314).
def _open(handle: IOBase, file: str, expected: CodesFormat | None) -> RowGroups:
    try:
        groups = RowGroups(handle, _COLUMNS)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and type(error) is not OSError:  # the network's, which may be tried again
            raise
        raise BrokenFile(f"{file} cannot be read as Parquet ({in_one_line(error):.{MAX_WORDS}}). {ANEW}") from error
    if not groups.writer.startswith(_WRITER):
        raise ValueError(f"{file} was not written by dalle_lib.streaming.write_codes, but by {groups.writer!r:.80}.")
    if expected is not None and (found := _format_of(groups, file)) != expected:
        raise ValueError(f"{file} holds codes of another kind: expected {expected}, but it has {found}.")
    return groups


def _format_of(groups: RowGroups, file: str) -> CodesFormat:
    if _METADATA_KEY not in groups.about:
        raise ValueError(f"{file} does not say what its codes mean: write it with dalle_lib.streaming.write_codes.")
    with reading(file, "codes, because what it says of them cannot be"):
        match json.loads(groups.about[_METADATA_KEY]):
            case {"grid": int(grid), "codebook_size": int(size), "vqgan_sha256": str(digest), **more} if (
                0 < grid <= 2**16 and size > 0 and len(digest) == 64 and not more
            ):
                return CodesFormat(grid=grid, codebook_size=size, vqgan_sha256=digest)
        raise ValueError(
            f"expected a grid, a codebook_size and a vqgan_sha256, but got {groups.about[_METADATA_KEY]!r:.100}"
        )


def _parse(row: dict, codes_format: CodesFormat) -> CodeRow | None:
    """Return a row of a file, or None if it is not what the file's metadata promises."""
    caption, raw = row.get("caption"), row.get("codes")
    if not isinstance(caption, str) or not isinstance(raw, bytes):
        return None
    if len(raw) != codes_format.grid**2 * _DTYPE.itemsize:
        return None
    codes = np.frombuffer(raw, _DTYPE).astype(np.int64)
    return CodeRow(caption, codes) if codes.max() < codes_format.codebook_size else None


def _retry(action: Callable, what: str):
    """Return `action()`, tried again with growing delays while the network fails; other errors are raised at once."""
    from huggingface_hub.errors import HfHubHTTPError

    from dalle_lib.hub_http import httpx

    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except (httpx.RequestError, HfHubHTTPError, ConnectionError) as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if attempt == _ATTEMPTS - 1 or status in (401, 403, 404):
                raise
            delay_s = min(2**attempt, 30)
            logger.warning("%s: %s; attempt %d, again in %d s", what, error, attempt + 1, delay_s)
            time.sleep(delay_s)
    raise AssertionError("unreachable")
