"""A recorded run played again: each signature is checked anew, and a monitor's own code makes its files of that."""

import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from hivemind.dht.validation import DHTRecord

from dalle_lib.auth import AccessToken
from dalle_lib.auth.authority import authority_key
from dalle_lib.files import BrokenFile, replace_file
from dalle_lib.monitor.alarms import note
from dalle_lib.monitor.anonymous import KEY
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.monitor import DATABASE, LOCK
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.published import HISTORY, fitted, history_of, publish, status_of
from dalle_lib.monitor.recorded import MAX_SEEN, REMEDY, Kept, KeptFile, Line, Look, Recording, Signed, Token
from dalle_lib.monitor.recording import REPLAYED
from dalle_lib.run.newest import PLAYED, STATUS
from dalle_lib.swarm import wire
from dalle_lib.swarm.peer.looks import Looks
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.drift import explained
from dalle_lib.swarm.process.status import PeerStatus
from dalle_lib.swarm.records import writer_of

RECORDING = Path(__file__).parent / "assets" / "recording" / "run.jsonl.gz"
"""The recording that is part of the package."""
GAP_S = 600.0
"""Seconds between two looks beyond which nothing is waited for, where a replay takes its time."""
PUBLISH_S, TELL_S = 2.0, 10.0
"""Seconds between two versions of the status, where a replay takes its time, and between two lines on how far it is
where it does not."""
MAX_REFUSED, OTHERS = 1000, "others"
"""Refusals that are told apart, and what the rest are called."""
MAX_TOKENS = 100_000
"""Peers whose access tokens are held, with two kilobytes each."""


@dataclass
class Played:
    """What came of a replay."""

    run: str
    looks: int = 0
    began: float = 0.0
    """When the first look was, in seconds since 1970."""
    ended: float = 0.0
    """When the last one was that was played."""
    records: int = 0
    """Records whose signatures were right."""
    refused: Counter[str] = field(default_factory=Counter)
    """Whose records, and access tokens, were not believed and why, and how many: not counted among `records`. There are
    MAX_REFUSED, and OTHERS."""
    cut: str = ""
    """Why the recording ended early, if it was cut off or damaged."""


class Replay:
    """Plays a recording into a folder, which then holds what a monitor's does that saw the run.

    Nothing that a peer has not signed is taken for what it says: a record that was changed, is of another run, or was
    told at another time is refused, and counted. The recorder's own word are the run's card, with its name, state and
    message, which looks there were, who was left out, and figures and pictures of checkpoints.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        """Raises FileNotFoundError or BrokenFile as `Recording.of`, ValueError for a folder of something else."""
        self._recording, self._folder = Recording.of(source), folder
        _require_replays(folder)
        if source.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"expected a folder beside the recording, but {folder} holds it and is emptied: name another."
            )
        self._card = self._recording.card
        self._board = MetricsBoard(self._card.key)
        self._looks = Looks(self._board, self._card, self._tokens_of if self._card.members else None)
        self._key, self._now = secrets.token_bytes(32), 0.0
        self._records: dict[int, DHTRecord] = {}
        self._unseen = 0
        """Records and access tokens since the last look."""
        self._tokens: dict[str, AccessToken] = {}
        self.played = Played(self._card.name)

    def play(
        self, minutes: float | None = None, speed: float | None = None, say: Callable[[str], None] = lambda line: None
    ) -> Played:
        """Play the whole recording, or its first `minutes`, and return what came of it.

        With `speed`, so many seconds of the recording pass in each second, and the files follow; without, only the end
        is written. `say` is told how far it is. Raises BrokenFile for what no recorder writes.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (mark := self._folder / REPLAYED).exists():
            mark.write_text("The next replay here removes what is in this folder.\n", encoding="utf-8")
        if (lock := self._folder / LOCK).is_symlink():  # out of an archive, to a file of somebody else
            lock.unlink()
        try:
            with FileLock(lock, timeout=0):
                self._empty_folder()
                return self._play(minutes, speed, say)
        except Timeout:
            raise ValueError(
                f"another replay writes into {self._folder}: wait until it has ended, or name another folder."
            ) from None

    def _play(self, minutes: float | None, speed: float | None, say: Callable[[str], None]) -> Played:
        with closing(MonitorDatabase(self._folder / DATABASE)) as database:
            observer = Observer(database, self._card.averaging.matchmaking_s, explained(self._card))
            every_s, due = (TELL_S, time.monotonic() + TELL_S) if speed is None else (PUBLISH_S, 0.0)
            for line in self._recording.lines():
                if not isinstance(line, Look):
                    self._keep(line, database)
                    continue
                if minutes is not None and self.played.looks and line.time > self.played.began + 60 * minutes:
                    break
                if speed is not None and self.played.looks:
                    time.sleep(min(max(0.0, line.time - self._now), GAP_S) / speed)
                self._look(line, observer)
                if time.monotonic() >= due:
                    if speed is not None:
                        self._publish(database)
                    due = time.monotonic() + every_s
                    say(f"{datetime.fromtimestamp(self._now, UTC):%Y-%m-%d %H:%M:%S}: {self.played.looks:,} looks")
            self.played.cut = self._recording.cut
            if not self.played.looks:
                raise ValueError(f"the recording holds no look at its run. {self.played.cut}".strip())
            self._publish(database)
        return self.played

    def _empty_folder(self) -> None:
        for part in self._folder.iterdir():
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            elif part.name not in (REPLAYED, LOCK):
                part.unlink()

    def _keep(self, line: Line, database: MonitorDatabase) -> None:
        match line:
            case Signed(number, record):
                self._check(number, DHTRecord(*record))
            case Token(peer, data):
                self._learn(peer, data)
            case Kept(row):
                database.insert("checkpoints", **row, repository=None, revision=None)
            case KeptFile(name, data):
                file = self._folder / name
                file.parent.mkdir(exist_ok=True)
                with replace_file(file) as unfinished:
                    unfinished.write_bytes(data)

    def _check(self, number: int, record: DHTRecord) -> None:
        """Take in a record if the hash table of this run would have taken it."""
        self._count_unseen()
        try:
            self._board.check(record)
        except ValueError as error:
            self._refuse(_writer(record), str(error))
            return
        self._records[number] = record
        self.played.records += 1

    def _count_unseen(self) -> None:
        self._unseen += 1
        if self._unseen > 2 * MAX_SEEN:
            raise BrokenFile(
                f"more than {2 * MAX_SEEN:,} records and access tokens lie between two looks, which no recorder "
                f"writes. {REMEDY}"
            )

    def _look(self, look: Look, observer: Observer) -> None:
        """Take in a look, if it is newer than the last. Raises ValueError if it names a record that is not there."""
        if look.time <= self._now:
            return
        self._now, self.played.looks, self.played.ended = look.time, self.played.looks + 1, look.time
        self.played.began = self.played.began or look.time
        seen = {number: self._records[number] for number in look.seen if number in self._records}
        self._records, self._unseen = seen, 0
        newest: dict[bytes, DHTRecord] = {}
        for record in sorted(seen.values(), key=lambda each: each.expiration_time):
            if self._board.believed(record, look.time) is None:
                self._refuse(_writer(record), "it tells of another peer, or was told at another time")
            else:
                newest[record.subkey] = record
        status = self._looks.status(list(newest.values()), look.time)
        status = replace(status, not_shown=status.not_shown + look.not_shown)
        _, found = observer.take_in(status, self._key, self._card.state == "open")
        note(found, observer.database, look.time)

    def _learn(self, peer: str, data: bytes) -> None:
        self._count_unseen()
        try:
            self._tokens[peer] = AccessToken.from_bytes(data)
        except ValueError:
            self._refuse(peer, "its access token is none")
        if len(self._tokens) > MAX_TOKENS:
            raise BrokenFile(f"more than {MAX_TOKENS:,} peers have access tokens, as in no run. {REMEDY}")

    def _tokens_of(self, peers: list[PeerStatus]) -> dict[str, AccessToken]:
        """Return the access tokens of those whose recorded ones are valid at this look."""
        valid, authority = {}, authority_key(self._card.members.authority)
        for peer in peers:
            if (token := self._tokens.get(peer.peer_id)) is None:
                continue
            try:
                token.check_for(peer.peer_id, authority, self._card.name, datetime.fromtimestamp(self._now, UTC))
                valid[peer.peer_id] = token
            except ValueError:
                self._refuse(peer.peer_id, "its access token is not valid")
        return valid

    def _refuse(self, peer: str, why: str) -> None:
        told, refused = f"{peer}: {why}", self.played.refused
        refused[told if told in refused or len(refused) < MAX_REFUSED else OTHERS] += 1

    def _publish(self, database: MonitorDatabase) -> None:
        status = fitted(status_of(self._card, database, self._now))
        publish(self._folder, STATUS, status | {PLAYED: round(time.time())})
        publish(self._folder, HISTORY, history_of(self._card, database, self._folder))


def _require_replays(folder: Path) -> None:
    """Raise ValueError unless a folder is a replay's, empty, or not there yet: what is in it will be removed."""
    mark, what = folder / REPLAYED, ""
    if (folder / KEY).exists():
        what = "is a monitor's"
    elif folder.exists() and (mark.is_symlink() or not mark.is_file()) and any(folder.iterdir()):
        what = "holds other files"
    if what:
        raise ValueError(f"expected a new folder, or that of a replay, but {folder} {what}: name another.")


def recorded_run(folder: Path) -> Path:
    """Return a folder with what a monitor of the recorded run in the package has told at its end: it is made."""
    Replay(RECORDING, folder).play()
    return folder


def _writer(record: DHTRecord) -> str:
    """Return whose mark a record has, or "nobody" for one without."""
    try:
        return writer_of(wire.loads(record.subkey))
    except ValueError:
        return "nobody"
