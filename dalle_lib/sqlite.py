"""One SQLite file that several threads and processes use at once: opened, checked, changed whole or not at all."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dalle_lib.files import BrokenFile, is_disk_full, replace_file

WAIT_S = 5.0
"""Seconds to wait for another process that writes."""


class SQLite:
    """The open file; it is made if it is missing, for its owner alone."""

    SCHEMA: str
    """Statements that make its tables."""
    VERSION: int
    """What `SCHEMA` is in the order of those that there have been, from 1."""
    UPGRADES: tuple[str, ...] = ()
    """Statements that make each version of the one before it, from 2 on: `VERSION - 1` of them."""
    WHAT: str
    """What the file is, as in "the data base of an authority"."""
    REMEDY: str
    """What to do with a broken one."""

    def __init__(self, file: Path, wait_s: float = WAIT_S) -> None:
        """Open a file; one of an older version becomes one of this.

        Raises BrokenFile for what is no such file, and ValueError for one of a later version, or that is in use.
        """
        if not file.exists():
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        try:
            self._sqlite = sqlite3.connect(file, timeout=wait_s, isolation_level=None, check_same_thread=False)
            self._sqlite.row_factory = sqlite3.Row
            for pragma in "journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "foreign_keys = ON":
                self._sqlite.execute(f"PRAGMA {pragma}")
            with self.writing():
                version = self._sqlite.execute("PRAGMA user_version").fetchone()[0]
                for statements in (self.SCHEMA,) if version == 0 else self.UPGRADES[version - 1 :]:
                    for statement in statements.split(";"):
                        self._sqlite.execute(statement)
                if version < self.VERSION:
                    self._sqlite.execute(f"PRAGMA user_version = {self.VERSION}")
        except sqlite3.DatabaseError as error:
            if is_disk_full(error) or getattr(error, "sqlite_errorname", "").startswith(
                ("SQLITE_BUSY", "SQLITE_LOCKED")
            ):
                raise ValueError(
                    f"{file} cannot be written now ({error}): end what else uses it, or make room on its disk, and try "
                    "again."
                ) from error
            raise BrokenFile(f"{file} cannot be used as {self.WHAT} ({error}). {self.REMEDY}") from error
        if version > self.VERSION:
            raise ValueError(f"expected version {self.VERSION} of {file}, but it is {version}: update dalle-lib.")

    def close(self) -> None:
        """Close the file."""
        self._sqlite.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make all that is written in the block one change: no other process comes between, and errors undo it."""
        self._sqlite.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sqlite.execute("COMMIT")
        except BaseException:
            if self._sqlite.in_transaction:  # after some errors SQLite has undone it by itself
                self._sqlite.execute("ROLLBACK")
            raise

    def rows(self, query: str, **values: object) -> list[sqlite3.Row]:
        """Return what a query finds."""
        return self._sqlite.execute(query, values).fetchall()

    def row(self, query: str, **values: object) -> sqlite3.Row | None:
        """Return the first thing that a query finds, if any."""
        return self._sqlite.execute(query, values).fetchone()

    def count(self, query: str, **values: object) -> int:
        """Return the number that a query finds."""
        return self._sqlite.execute(query, values).fetchone()[0]

    def change(self, query: str, **values: object) -> int:
        """Write, and return how many rows were written."""
        return self._sqlite.execute(query, values).rowcount

    def insert(self, table: str, **values: object) -> None:
        """Write a row in the place of any with the same key."""
        names = ", ".join(values)
        self.change(f"INSERT OR REPLACE INTO {table} ({names}) VALUES (:{names.replace(', ', ', :')})", **values)

    def back_up(self, file: Path) -> None:
        """Write a copy to a file that only its owner can read, in the place of what is there, while others write."""
        with replace_file(file, durable=True) as unfinished:
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(sqlite3.connect(unfinished)) as copy:
                self._sqlite.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
