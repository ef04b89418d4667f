"""How far the work on a data set is: a small data base, which a killed program leaves as it was after its last batch.

Rows that have been encoded wait in it until they fill a file, so that a program that goes on encodes nothing twice.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from dalle_lib.files import reading
from dalle_lib.streaming.manifest import FileEntry
from dalle_lib.streaming.prepare.sources import Source

SPLITS = ("train", "held_out")
JOURNAL = "journal.sqlite"
REMEDY = "Prepare the data set anew in another folder."
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS units (number INTEGER PRIMARY KEY, name BLOB UNIQUE, bytes INTEGER, stamp TEXT);
CREATE TABLE IF NOT EXISTS counts (reason TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hashes (hash INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY, split TEXT, place INTEGER, caption TEXT, codes BLOB, nsfw TEXT, width INTEGER,
    height INTEGER);
CREATE INDEX IF NOT EXISTS rows_of ON rows (split, number);
CREATE TABLE IF NOT EXISTS shards (
    number INTEGER PRIMARY KEY, split TEXT, name TEXT UNIQUE, entry TEXT NOT NULL, revision TEXT);
CREATE TABLE IF NOT EXISTS samples (place INTEGER, split TEXT, caption TEXT, picture BLOB, PRIMARY KEY (split, place));
"""


@dataclass(frozen=True)
class Encoded:
    """A row that waits for its file."""

    split: str
    place: int
    """Where it stands among the rows of its file."""
    caption: str
    codes: bytes
    nsfw: str | None
    width: int
    height: int


@dataclass(frozen=True)
class Sample:
    """A row that is shown with its picture."""

    place: int
    split: str
    caption: str
    picture: bytes
    """A PNG."""


@dataclass(frozen=True)
class Shard:
    """A finished file of a data set."""

    split: str
    entry: FileEntry
    revision: str | None
    """The commit with which the Hub has it; None until then."""

    @property
    def name(self) -> str:
        """Its place in the data set."""
        return f"{self.split}/{self.entry.name}"


class Journal:
    """The data base in a folder. Each thread opens its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / JOURNAL
        with reading(file, "a journal", "Prepare the data set anew in another folder."):
            self._data = sqlite3.connect(file, timeout=60, isolation_level=None)
            with self.change():
                for command in _SCHEMA.split(";"):
                    self._data.execute(command)
        if (version := self.meta("version")) is None:
            self.set_meta("version", _VERSION)
        elif version != _VERSION:
            self.close()
            raise ValueError(f"{folder} was made by another version of this program: name another folder to write to.")

    def close(self) -> None:
        """Close the data base."""
        self._data.close()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Make all changes of the block at once, or none if it ends with an error or the program is killed."""
        self._data.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._data.execute("ROLLBACK")
            raise
        self._data.execute("COMMIT")

    def meta(self, name: str, default: object = None) -> object:
        """Return what `set_meta` was given last."""
        found = self._data.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return json.loads(found[0]) if found else default

    def set_meta(self, name: str, value: object) -> None:
        """Keep what JSON can hold under a name."""
        self._data.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def require_same(self, name: str, value: dict[str, object], what: str) -> None:
        """Keep `value` if it is the first of this name, or no unit of a source is known yet.

        Raises ValueError, naming what differs, if it is another.
        """
        value = json.loads(json.dumps(value))
        if (known := self.meta(name)) is None or not self.unit_bytes()[0]:
            self.set_meta(name, value)
        elif known != value:
            changed = [key for key in {**known, **value} if known.get(key) != value.get(key)]
            told = ", ".join(f"{key} was {known.get(key)!r} and is now {value.get(key)!r}" for key in changed)
            raise ValueError(
                f"this folder's data set was begun with {what}: {told}. Go on with the same, or name another folder."
            )

    def take_units(self, source: Source) -> None:
        """Add the units of a source that are new, behind the known ones.

        Raises ValueError if a known one has changed, or is gone.
        """
        with self.change():
            self._data.execute("DROP TABLE IF EXISTS temp.listed")
            self._data.execute("CREATE TEMP TABLE listed (name BLOB PRIMARY KEY, bytes INTEGER, stamp TEXT, rank)")
            found = ((os.fsencode(unit.name), unit.bytes, unit.stamp) for unit in source.units())
            ranked = ((*unit, place_of(unit[0]) if source.is_permuted else None) for unit in found)
            self._data.executemany("INSERT INTO listed VALUES (?, ?, ?, ?)", ranked)
            changed = self._data.execute(
                "SELECT units.name, listed.stamp FROM units LEFT JOIN listed USING (name) "
                "WHERE units.stamp IS NOT listed.stamp LIMIT 1"
            ).fetchone()
            if changed:
                what = "is gone" if changed[1] is None else "has changed"
                raise ValueError(
                    f"the source is not the one that this folder's data set was made of: {os.fsdecode(changed[0])!r} "
                    f"{what}. Bring it back, or prepare the source anew in another folder; new files may be added."
                )
            self._data.execute(
                "INSERT INTO units (name, bytes, stamp) SELECT name, bytes, stamp FROM listed "
                "WHERE name NOT IN (SELECT name FROM units) ORDER BY rank, name"
            )
            self._data.execute("DROP TABLE temp.listed")

    def units(self, start: int) -> Iterator[tuple[int, str]]:
        """Yield the number and name of each unit from number `start` on."""
        while page := self._data.execute(
            "SELECT number, name FROM units WHERE number >= ? ORDER BY number LIMIT 1000", (start,)
        ).fetchall():
            yield from ((number, os.fsdecode(name)) for number, name in page)
            start = page[-1][0] + 1

    def unit_bytes(self, before: int | None = None) -> tuple[int, int]:
        """Return how many units there are, and their bytes; those with numbers below `before`, if it is given."""
        where, values = ("", ()) if before is None else (" WHERE number < ?", (before,))
        return self._data.execute(f"SELECT count(*), coalesce(sum(bytes), 0) FROM units{where}", values).fetchone()

    @property
    def next_row(self) -> tuple[int, int]:
        """The number of the unit where the next row is, and how many rows of it are done."""
        return tuple(self.meta("next_row", (1, 0)))

    def count(self, reason: str, number: int = 1) -> None:
        """Add to the number of rows of which something is true."""
        self._data.execute(
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT (reason) DO UPDATE SET number = number + excluded.number",
            (reason, number),
        )

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of rows by what is true of them."""
        return dict(self._data.execute("SELECT reason, number FROM counts ORDER BY reason"))

    def has_seen(self, picture_hash: int) -> bool:
        """Return whether a picture's hash was given to `see`."""
        return self._data.execute("SELECT 1 FROM hashes WHERE hash = ?", (picture_hash,)).fetchone() is not None

    def see(self, picture_hash: int) -> None:
        """Remember a picture's hash."""
        self._data.execute("INSERT OR IGNORE INTO hashes VALUES (?)", (picture_hash,))

    def add_row(self, row: Encoded) -> None:
        """Let a row wait for its file."""
        columns = "split, place, caption, codes, nsfw, width, height"
        self._data.execute(f"INSERT INTO rows ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(vars(row).values()))

    def waiting(self, split: str) -> int:
        """Return how many rows of a split wait."""
        return self._data.execute("SELECT count(*) FROM rows WHERE split = ?", (split,)).fetchone()[0]

    def first_rows(self, split: str, most: int) -> tuple[int, list[int]]:
        """Return the last number of the `most` rows that have waited longest, and their numbers in a file's order."""
        numbers = self._data.execute(
            "SELECT number, place FROM rows WHERE split = ? ORDER BY number LIMIT ?", (split, most)
        ).fetchall()
        return numbers[-1][0], [number for number, place in sorted(numbers, key=lambda row: (row[1], row[0]))]

    def row(self, number: int) -> Encoded:
        """Return a row that waits."""
        found = self._data.execute(
            "SELECT split, place, caption, codes, nsfw, width, height FROM rows WHERE number = ?", (number,)
        )
        return Encoded(*found.fetchone())

    def add_shard(self, split: str, entry: FileEntry, last: int) -> None:
        """Note that the rows of a split up to number `last` are in a file now."""
        with self.change():
            self._data.execute("DELETE FROM rows WHERE split = ? AND number <= ?", (split, last))
            told = json.dumps(asdict(entry))
            self._data.execute(
                "INSERT INTO shards (split, name, entry) VALUES (?, ?, ?)", (split, f"{split}/{entry.name}", told)
            )

    def shards(self, split: str | None = None, only_unsent: bool = False) -> list[Shard]:
        """Return the finished files, in the order in which they were finished."""
        found = self._data.execute("SELECT split, entry, revision FROM shards ORDER BY number").fetchall()
        shards = [Shard(split, _entry(entry), revision) for split, entry, revision in found]
        return [
            shard
            for shard in shards
            if split in (None, shard.split) and not (only_unsent and shard.revision is not None)
        ]

    def mark_sent(self, names: Iterable[str], revision: str | None) -> None:
        """Note the commit with which the Hub has files; None if it has them no more."""
        with self.change():
            for name in names:
                self._data.execute("UPDATE shards SET revision = ? WHERE name = ?", (revision, name))

    def add_sample(self, sample: Sample, most: int) -> None:
        """Keep a sample if its place is among the `most` first of its split."""
        self._data.execute(
            "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?)",
            (sample.place, sample.split, sample.caption, sample.picture),
        )
        self._data.execute(
            "DELETE FROM samples WHERE split = ?1 AND place NOT IN "
            "(SELECT place FROM samples WHERE split = ?1 ORDER BY place LIMIT ?2)",
            (sample.split, most),
        )

    def last_place(self, split: str, most: int) -> int:
        """Return the place above which a sample of a split would not be kept."""
        places = self._data.execute(
            "SELECT place FROM samples WHERE split = ? ORDER BY place LIMIT 1 OFFSET ?", (split, most - 1)
        ).fetchone()
        return places[0] if places else 2**63 - 1

    def samples(self, split: str) -> list[Sample]:
        """Return the samples of a split."""
        found = self._data.execute(
            "SELECT place, split, caption, picture FROM samples WHERE split = ? ORDER BY place", (split,)
        )
        return [Sample(*row) for row in found]


def shard_name(number: int) -> str:
    """Return the name of a split's file."""
    return f"{number:05}.parquet"


def place_of(name: bytes) -> int:
    """Return a number of 62 bits that is as good as drawn, but always the same for a name."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 2


def _entry(told: str) -> FileEntry:
    about = json.loads(told)
    return FileEntry(**{**about, "groups": tuple(about["groups"])})
