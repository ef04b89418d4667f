"""The manifest of a data set of codes: its files, with what a reader needs to check each before it believes it.

The manifest's own hash stands in a run's card. It names the hash of each file's footer, and a footer names that of each
row group, so what a peer reads of a file is checked without reading the rest.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from dalle_lib.files import reading, replace_file, sha256_of
from dalle_lib.streaming.codes import CodesFormat, code_files
from dalle_lib.streaming.footer import MAX_FOOTER_BYTES, Footer, read_footer, reader_of
from dalle_lib.streaming.row_groups import HASHES_KEY, MAX_GROUP_ROWS, require_apart

MANIFEST = "manifest.json"
"""Its name in the folder of the files that it lists."""
_VERSION = 1
MAX_GROUPS = 2**20
"""Row groups of a data set at most: ten times those of 100 million pictures, 1000 in a group."""


@dataclass(frozen=True)
class FileEntry:
    """What a manifest says of a file."""

    name: str
    """Its place below the manifest's folder."""
    bytes: int
    sha256: str
    footer_bytes: int
    footer_sha256: str
    groups: tuple[int, ...]
    """Rows of each row group."""

    @classmethod
    def of(cls, file: Path, name: str) -> "FileEntry":
        """Return the entry of a file. Raises ValueError if it is no Parquet."""
        with open(file, "rb") as handle:
            footer = read_footer(reader_of(handle), handle.seek(0, 2))
        if HASHES_KEY not in footer.about:  # a manifest would say nothing of its rows
            raise ValueError("it does not tell the hashes of its row groups: write it with write_codes")
        return cls.of_footer(footer, name, sha256_of(file))

    @classmethod
    def of_footer(cls, footer: Footer, name: str, sha256: str = "") -> "FileEntry":
        """Return the entry of a file of which only the footer is at hand. Raises ValueError as `require_apart` does."""
        require_apart(footer)
        raw, groups = footer.raw, tuple(group.rows for group in footer.groups)
        return cls(name, footer.size, sha256, len(raw), hashlib.sha256(raw).hexdigest(), groups)


@dataclass(frozen=True)
class Manifest:
    """The files of a data set, and what their codes mean."""

    format: CodesFormat
    files: tuple[FileEntry, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(sum(file.groups) for file in self.files)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def text(self) -> str:
        """The manifest as its file has it."""
        files = [json.dumps(asdict(file)) for file in self.files]
        about = f'"version": {_VERSION}, "format": {json.dumps(asdict(self.format))}'
        return f"{{{about}, " + '"files": [\n' + ",\n".join(files) + "\n]}\n"

    @cached_property
    def sha256(self) -> str:
        """The hash of `text`, by which a run's card names the data set."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def save(self, folder: str | Path) -> Path:
        """Write the manifest into the folder of its files, and return where."""
        path = Path(folder) / MANIFEST
        with replace_file(path) as unfinished:
            unfinished.write_text(self.text, encoding="utf-8")
        return path

    @classmethod
    def of_folder(cls, folder: str | Path, codes_format: CodesFormat) -> "Manifest":
        """Return the manifest of all Parquet files in a folder, whose codes mean `codes_format`.

        Raises BrokenFile for a file that is no Parquet.
        """
        folder, entries = Path(folder), []
        for file in code_files(folder):
            with reading(file, "Parquet"):
                entries.append(FileEntry.of(file, file.relative_to(folder).as_posix()))
        return cls(codes_format, tuple(entries))

    @classmethod
    def parse(cls, text: bytes, where: str) -> "Manifest":
        """Return the manifest in the bytes of a file. Raises BrokenFile, which names `where`, if they hold none."""
        with reading(where, "the manifest of a data set"):
            told = json.loads(text)
            if told["version"] != _VERSION:
                raise ValueError(f"it is of version {told['version']!r:.20}, and this program knows {_VERSION}")
            made = cls(CodesFormat.of(told["format"]), tuple(_entry(one) for one in told["files"]))
            if len({entry.name for entry in made.files}) < len(made.files):
                raise ValueError("it names a file twice, whose rows would come twice")
            require_few(made.files)
            if made.text.encode() != text:
                raise ValueError("it is not written as this program writes it")
            return made


def require_few(files: Sequence[FileEntry]) -> None:
    """Raise ValueError if files have more than MAX_GROUPS row groups: a data set takes memory for each."""
    if sum(len(file.groups) for file in files) > MAX_GROUPS:
        raise ValueError(f"the data set has more than {MAX_GROUPS:,} row groups: write more rows to a group")


def _entry(told: dict) -> FileEntry:
    """Return an entry of a manifest. Raises ValueError if it cannot be one."""
    entry = FileEntry(**{**told, "groups": tuple(told["groups"])})
    is_named = isinstance(entry.name, str) and entry.name.isprintable() and len(entry.name) <= 300
    # In Windows a backslash parts folders, too, and two of them at the beginning name another machine.
    if not is_named or "\\" in entry.name or any(part in ("", ".", "..") for part in entry.name.split("/")):
        raise ValueError(f"expected the name of a file in the manifest's folder, but got {entry.name!r:.60}")
    numbers = [entry.bytes, entry.footer_bytes, *entry.groups]
    if not all(type(number) is int and 0 <= number < 2**40 for number in numbers):
        raise ValueError(f"expected sizes and rows of {entry.name}, but got {numbers!r:.60}")
    if not 8 <= entry.footer_bytes <= min(entry.bytes, MAX_FOOTER_BYTES + 8):
        raise ValueError(f"expected sizes of {entry.name}, but its footer would take {entry.footer_bytes:,} bytes")
    if max(entry.groups, default=0) > MAX_GROUP_ROWS:
        raise ValueError(f"expected at most {MAX_GROUP_ROWS:,} rows in a row group of {entry.name}")
    if not all(_is_hash(digest) for digest in (entry.sha256, entry.footer_sha256)):
        raise ValueError(f"expected hashes of {entry.name}, but got {entry.sha256!r:.70}")
    return entry


def _is_hash(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not text.strip("0123456789abcdef")
