"""A recording of a run: what its peers have signed, look by look, and what its checkpoints were found to be.

A file of JSON lines in gzip, a member of it for each minute, so that one whose writer was killed is whole up to there:

- the first line says what it is: `recording` (VERSION), `kit`, and `card`, the text of the run's card;
- `signed`: a record of the hash table, see `SignedRecord`; records are numbered from 0 in each file;
- `token`: the access token of a peer, in a run with members;
- `look`: a moment, in seconds since 1970, with the numbers of the records that were `seen`, and how many peers more
  there were (`not_shown`);
- `checkpoint`: what the monitor knows of one; `file`: a picture or the prompts, with its `data` in base 64.

What peers say, a replay checks by their signatures. The rest is the monitor's own word: the card, which looks there
were, whom it left out of them, and what it tells of checkpoints.
"""

import base64
import gzip
import json
import re
import time
from collections.abc import Iterable, Set
from pathlib import Path

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import BEST, PICTURES
from dalle_lib.organizing.model_page import PAGE_FOLDER, PROMPTS_FILE
from dalle_lib.run import RunCard
from dalle_lib.swarm.process.evidence import END
from dalle_lib.swarm.process.signed import LETTERS, SignedLook, SignedRecord
from dalle_lib.version import __version__

VERSION = 1
RECORDINGS, ENDING = "recordings", ".jsonl.gz"
"""The folder in a monitor's with a file for each of its starts, and the end of their names."""
REPLAYED = "replayed.txt"
"""File by which the folder of a replay is known: none empties a monitor's, and no monitor goes on in a replay's."""
MEMBER_S = 60.0
"""Seconds of looks that are lost at most when the monitor is killed."""
MEGABYTE = 10**6
KEPT_FILES = re.compile(rf"({PICTURES}|{BEST})/epoch-\d{{7,10}}\.webp|{PAGE_FOLDER}/{re.escape(PROMPTS_FILE)}")
"""Names of the files in a monitor's folder that are recorded."""


MAX_NAMED = 100_000
"""Peers that are remembered as named ones; those seen last are."""
_ENDS = re.compile(rb" ([0-9A-Za-z]{%d})=" % END)
"""How a record names others (`evidence.witness`): by the ends of their ids."""


class Recorder:
    """Writes a recording of a run into a monitor's folder, until `write` fails or its recordings have `max_mb`.

    Nothing in it tells of hidden peers. So a record that names others by the ends of their ids, as it has counted with
    them, is left out unless it is known of each of them that it is not hidden.
    """

    def __init__(self, folder: Path, card: RunCard, max_mb: float) -> None:
        place = folder / RECORDINGS
        place.mkdir(exist_ok=True)
        earlier = list(place.glob(f"*{ENDING}"))
        self._folder, self._file = folder, place / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}{ENDING}"
        self._left = max_mb * MEGABYTE - sum(file.stat().st_size for file in earlier)
        self._files = {"": max((file.stat().st_mtime for file in earlier), default=0.0)}
        """When each file that was taken in was written; under "", before when those of earlier recordings were."""
        self._lines: list[str] = []
        self._written, self._time, self._count = time.monotonic(), 0.0, 0
        self._last: dict[str, tuple[int, SignedRecord]] = {}
        self._tokens: dict[str, bytes] = {}
        self._named: dict[str, None] = {}
        """Ends of the ids of peers that were there and not hidden, with those seen last at the end."""
        self._checkpoints: dict[int, dict] = {}
        self._add(recording=VERSION, kit=__version__, card=card.with_changes(initial_peers=()).as_text())

    @property
    def is_full(self) -> bool:
        """Whether nothing more is recorded, because there is as much as there may be."""
        return self._left <= 0

    def note(self, look: SignedLook, hidden: Set[str], database: MonitorDatabase) -> None:
        """Record a look, if it is a new one, without what tells of `hidden` peers. Raises OSError as `write` does."""
        if self.is_full or look.time <= self._time:
            return
        self._time = look.time
        self._note_look(look, hidden)
        if time.monotonic() - self._written >= MEMBER_S:
            self.write(database)

    def write(self, database: MonitorDatabase) -> None:
        """Write the looks since it was called last, and what is new in the monitor's memory and folder.

        Raises OSError if that cannot be written, and then no more is recorded.
        """
        self._note_checkpoints(database)
        member, self._lines, self._written = gzip.compress("".join(self._lines).encode(), mtime=0), [], time.monotonic()
        left, self._left = self._left - len(member), 0.0  # what comes after a member that is not whole cannot be read
        with open(self._file, "ab") as file:
            file.write(member)
        self._left = left

    def _note_look(self, look: SignedLook, hidden: Set[str]) -> None:
        last, self._last = self._last, {}
        self._note_named(look.records.keys() - hidden, hidden)
        for peer, record in look.records.items():
            if peer in hidden or not self._names_no_other(record.value):
                continue
            number, known = last.get(peer, (0, None))
            if record != known:
                number, self._count = self._count, self._count + 1
                self._add(signed=record.as_told())
            self._last[peer] = number, record
            if (token := look.tokens.get(peer)) != self._tokens.get(peer):
                self._tokens[peer] = token
                self._add(token=token.decode(LETTERS), peer=peer)
        self._tokens = {peer: token for peer, token in self._tokens.items() if peer in self._last}
        seen = [number for number, _ in self._last.values()]
        self._add(look=look.time, seen=seen, not_shown=look.not_shown)

    def _note_named(self, seen: Iterable[str], hidden: Iterable[str]) -> None:
        for peer in hidden:
            self._named.pop(peer[-END:], None)
        for peer in seen:
            self._named.pop(peer[-END:], None)
            self._named[peer[-END:]] = None
        while len(self._named) > MAX_NAMED:
            del self._named[next(iter(self._named))]

    def _names_no_other(self, value: bytes) -> bool:
        """Return whether a record names none but peers of which is known that they are not hidden."""
        return all(end.decode() in self._named for end in _ENDS.findall(value))

    def _note_checkpoints(self, database: MonitorDatabase) -> None:
        for row in database.rows("SELECT epoch, made, sha256, bytes, figures FROM checkpoints"):
            if self._checkpoints.get(row["epoch"]) != (told := dict(row)):
                self._checkpoints[row["epoch"]] = told
                self._add(checkpoint=told)
        for file in sorted(self._folder.glob("*/*")):
            name = file.relative_to(self._folder).as_posix()
            if not KEPT_FILES.fullmatch(name):
                continue
            if (written := file.stat().st_mtime) > self._files.get(name, self._files[""]):
                self._files[name] = written
                self._add(file=name, data=base64.b64encode(file.read_bytes()).decode())

    def _add(self, **line) -> None:
        self._lines.append(json.dumps(line, ensure_ascii=False) + "\n")
