"""A data set of codes that is open for reading: its manifest, and its row groups as bytes or rows."""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from dalle_lib.files import MAX_RECORD_BYTES, BrokenFile, reading
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.codes import CodesFile, CodesFormat, open_codes, range_of
from dalle_lib.streaming.fetch import Differs, Gone, HubFiles, Refused, WebFiles
from dalle_lib.streaming.filters import Filters
from dalle_lib.streaming.footer import Footer, parse_footer
from dalle_lib.streaming.layouts import CodeRow
from dalle_lib.streaming.local_files import LocalFiles
from dalle_lib.streaming.manifest import MANIFEST, FileEntry, Manifest, require_few
from dalle_lib.streaming.row_groups import HASHES_KEY, HashDiffers, require_apart

logger = logging.getLogger(__name__)

_OPEN_FILES = 16
"""Footers that are kept, so that the next row group of a file needs one request."""
_LOCK = threading.Lock()
Values = tuple[CodesFile, dict] | str
"""A row as its file has it, or why it cannot be read."""


class DataSet:
    """The row groups of a data set, which `files` holds; they are numbered through all files.

    What differs from the manifest, is gone or is damaged is not read, and each of its rows tells why.
    """

    def __init__(
        self,
        files: LocalFiles | WebFiles,
        *,
        expected: CodesFormat | None = None,
        manifest_sha256: str | None = None,
        filters: Filters | None = None,
    ) -> None:
        """Raises ValueError if there is nothing to read, codes are not what `expected` says, the manifest has another
        hash than `manifest_sha256`, or the data do not tell what the filters need; and as `files` does."""
        self.files, self.filters, self.unreadable = files, filters or Filters(), Counter()
        self._footers: OrderedDict[int, Footer] = OrderedDict()
        self._opened: OrderedDict[int, CodesFile] = OrderedDict()
        self.has_manifest = False
        self.manifest = self._manifest(manifest_sha256, expected)
        if expected is not None and self.manifest.format != expected:
            raise ValueError(
                f"{files.where} holds codes of another kind: expected {expected}, but it has {self.manifest.format}."
            )
        self.groups = [
            (file, number, rows)
            for file, entry in enumerate(self.manifest.files)
            for number, rows in enumerate(entry.groups)
        ]
        """The file, the number in it and the rows of each row group."""
        self._try_filters()

    def fetch(self, group: int) -> bytes | str:
        """Return the bytes of a row group, or why they cannot be read; Arrow is not used for that."""
        file, number, _ = self.groups[group]
        entry = self.manifest.files[file]
        try:
            footer = self._footer(file)
            with reading(self._place(file), "Parquet"):
                start, length = range_of(footer, number, self.filters)
            return self.files.read(entry.name, start, length, entry.bytes)
        except Refused:
            raise
        except (Gone, ValueError) as error:
            return self._why(error)

    def rows(self, group: int, data: bytes | str) -> list[Values]:
        """Return the rows of a row group, whose bytes `fetch` returned."""
        file, number, rows = self.groups[group]
        if isinstance(data, str):
            return [data] * rows
        try:
            opened = self._codes_file(file)
            with reading(self._place(file), "Parquet"):
                return [(opened, values) for values in opened.read(number, data)]
        except (Refused, ConnectionError):
            raise
        except (Gone, ValueError) as error:
            return [self._why(error)] * rows

    def _place(self, file: int) -> str:
        return self.files.place(self.manifest.files[file].name)

    def _why(self, error: Exception) -> str:
        """Return why a row group is left out, in words that are the same for all of its kind; its log line has more."""
        logger.warning("left out: %s", in_one_line(error))
        if isinstance(error, Gone):
            return "file is gone"
        if isinstance(error, Differs):
            return "file differs from the manifest"
        if isinstance(error.__cause__, HashDiffers):
            return "row group differs from its hash"
        return "row group damaged" if isinstance(error, BrokenFile) else "file of another kind"

    def _codes_file(self, file: int) -> CodesFile:
        return _cached(
            self._opened,
            file,
            lambda: CodesFile(self._footer(file), self.manifest.files[file].name, self.manifest.format, self.filters),
        )

    def _footer(self, file: int) -> Footer:
        return _cached(self._footers, file, lambda: self._fetched_footer(self.manifest.files[file]))

    def _fetched_footer(self, entry: FileEntry) -> Footer:
        raw = self.files.read(entry.name, entry.bytes - entry.footer_bytes, entry.footer_bytes, entry.bytes)
        if sha256(raw).hexdigest() != entry.footer_sha256:
            raise Differs(f"{self.files.where}: {entry.name} is not the file that the manifest names")
        with reading(self.files.place(entry.name), "Parquet"):
            footer = parse_footer(raw, entry.bytes)
            require_apart(footer)
        if tuple(group.rows for group in footer.groups) != entry.groups:
            raise Differs(f"{self.files.where}: {entry.name} has not the rows that the manifest says")
        if self.has_manifest and HASHES_KEY not in footer.about:
            raise Differs(f"{self.files.where}: {entry.name} does not tell the hashes of its row groups")
        return footer

    def _manifest(self, manifest_sha256: str | None, expected: CodesFormat | None) -> Manifest:
        """Return the data set's manifest, or, where it has none, one that its files' footers make."""
        where, text = f"{self.files.where}/{MANIFEST}", self.files.whole(MANIFEST, MAX_RECORD_BYTES)
        if text is not None:
            if len(text) > MAX_RECORD_BYTES:
                raise BrokenFile(f"{where} has more than {MAX_RECORD_BYTES:,} bytes: write fewer, larger files.")
            if manifest_sha256 not in (None, found := sha256(text).hexdigest()):
                raise ValueError(
                    f"{where} is not the one that the run names: expected SHA-256 {manifest_sha256}, found {found}."
                )
            self.has_manifest = True
            return Manifest.parse(text, where)
        if manifest_sha256 is not None:
            raise ValueError(f"{self.files.where} has no {MANIFEST}, but the run names one: copy the whole folder.")
        return self._made_manifest(expected)

    def _made_manifest(self, expected: CodesFormat | None) -> Manifest:
        if not (names := self.files.names()):
            raise ValueError(f"expected Parquet files in {self.files.where}, but found none.")
        entries, found = [], expected
        for name in names:
            try:
                size = self.files.size(name)
                opened = open_codes(
                    lambda start, length, name=name, size=size: self.files.read(name, start, length, size),
                    size,
                    self.files.place(name),
                    found,
                    self.filters,
                )
                with reading(name, "Parquet"):
                    entry = FileEntry.of_footer(opened.groups.footer, name)
            except (BrokenFile, Gone, Differs) as error:
                if len(names) == 1:
                    raise
                logger.warning("left out: %s", in_one_line(error))
                self.unreadable["files that cannot be read"] += 1
                continue
            found = found or opened.format
            entries.append(entry)
            require_few(entries)
        if not entries:
            raise ValueError(
                f"none of the {len(names)} Parquet files in {self.files.where} can be read. Were they written by "
                "dalle_lib.streaming.write_codes?"
            )
        return Manifest(found, tuple(entries))

    def _try_filters(self) -> None:
        """Raise ValueError, before anything is drawn, if a file does not tell what the filters need.

        That is the first file that can be opened: one that is gone or damaged tells nothing.
        """
        if not self.filters.needs:
            return
        for file in range(len(self.manifest.files)):
            try:
                self._codes_file(file)
                return
            except (BrokenFile, Gone, Differs):
                continue


def open_files(source: str, revision: str | None = None, token: str | None = None) -> LocalFiles | WebFiles:
    """Return the files of a folder, of `hf://datasets/owner/name[/folder]` on the Hub, or below an https address."""
    if source.startswith("hf://"):
        return HubFiles(source, revision, token)
    if source.startswith(("https://", "http://")):
        return WebFiles(source)
    return LocalFiles(Path(source))


def row_of(values: Values) -> CodeRow | str:
    """Return a row, or why it is left out."""
    return values if isinstance(values, str) else values[0].row(values[1])


def _cached(kept: OrderedDict, key: int, make: Callable):
    """Return what is kept for a key, made if need be; the one that was asked for longest ago is forgotten."""
    made = kept.get(key) or make()
    with _LOCK:  # the thread that reads ahead keeps footers, too
        kept[key] = made
        kept.move_to_end(key)
        if len(kept) > _OPEN_FILES:
            kept.popitem(last=False)
    return made
