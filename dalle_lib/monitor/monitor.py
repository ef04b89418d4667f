"""The monitor of a run: it follows its own peer there, remembers what that sees, and tells everybody."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from dalle_lib.auth.keys import PeerKey
from dalle_lib.monitor.alarms import Problem, note
from dalle_lib.monitor.anonymous import key_in, tagged_among, tags_in
from dalle_lib.monitor.checkpoints import note_new, remove_old
from dalle_lib.monitor.confirming import confirm
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.evaluating import Examiner
from dalle_lib.monitor.going_back import go_back
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.own_problems import OwnProblems
from dalle_lib.monitor.page import write_page
from dalle_lib.monitor.published import HISTORY, fitted, history_of, publish, status_of
from dalle_lib.monitor.recomputing import Recomputer
from dalle_lib.monitor.recording import REPLAYED, Recorder
from dalle_lib.monitor.settings import MonitorSettings
from dalle_lib.monitor.steward import Steward
from dalle_lib.monitor.telling import Command, Gauges, Messages, Webhook, serve, webhook_in
from dalle_lib.monitor.uploading import Uploader
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.newest import STATUS
from dalle_lib.swarm.process.drift import explained
from dalle_lib.swarm.process.folder import IDENTITY, own_id
from dalle_lib.swarm.process.join import Peer, PeerFailed
from dalle_lib.swarm.process.signed import SignedLook
from dalle_lib.swarm.process.status import SwarmStatus

logger = logging.getLogger(__name__)

DATABASE, LOCK = "monitor.sqlite", "monitor.lock"
HISTORY_FACTOR = 4
"""How many times more seldom than the status the history is written."""
RESTARTS_S = 30.0
"""Seconds after which a peer that has ended is started again."""


@dataclass
class Watch:
    """What a monitor works with while it follows a run."""

    peer: Peer
    database: MonitorDatabase
    observer: Observer
    own: OwnProblems
    steward: Steward
    recomputer: Recomputer | None = None
    recorder: Recorder | None = None
    uploader: Uploader | None = None
    sends_by: tuple | None = None
    """The repository and the monitors in the card by which `uploader` was made."""


class Monitor:
    """Follows a run until it is told to stop; started again in the same folder, it goes on where it was.

    `start` starts the monitor's peer there, an observer, and is called again where that has ended. `say` is told what
    a person wants to know, a line each. Where the card names a repository for checkpoints, they are sent there, with
    the Hub token `token`; it is made, `is_private` or for everybody, if it is new. At its last epoch the run is
    finished.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        start: Callable[[], Peer],
        settings: MonitorSettings | None = None,
        token: str | None = None,
        say: Callable[[str], None] = logger.info,
        is_private: bool = False,
    ) -> None:
        self.run_name, self.folder, self.settings, self.token = run, folder, settings or MonitorSettings(), token
        self._start, self._say, self._is_private = start, say, is_private
        self.card = RunCard.load(run, token)
        self._key, self._status = b"", {}
        self._tellers: list[Messages] = []

    def follow(self, stop: threading.Event) -> None:
        """Monitor until `stop` is set. Problems are also told by a webhook and a command, where there are any.

        Raises ValueError if another monitor works in this folder, or a replay has written it.
        """
        if (self.folder / REPLAYED).exists():
            raise ValueError(
                f"expected a folder for a monitor, but {self.folder} is that of a replay, whose peers would be "
                "credited in this run: name another --folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        address, self._key = webhook_in(self.folder), key_in(self.folder)
        self._tellers = [Webhook(address, self.card.name)] if address is not None else []
        if self.settings.alarm_command:
            self._tellers.append(Command(self.settings.alarm_command, self.card.name))
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another monitor works in {self.folder}: stop it, or name another --folder for a second one, which "
                "does no harm."
            ) from None
        try:
            with ExitStack() as stack:
                database = stack.enter_context(closing(MonitorDatabase(self.folder / DATABASE)))
                if self.settings.metrics_port:
                    stack.callback(serve(Gauges(lambda: self._status), self.settings.metrics_port))
                self._follow(database, stop)
        finally:
            lock.release()

    def _follow(self, database: MonitorDatabase, stop: threading.Event) -> None:
        watch, written, restart, due = self._watch(database, self._start()), 0, 0.0, 0.0
        examiner = self._examiner(watch.peer)
        try:
            while True:
                if not watch.peer.is_running and not stop.is_set() and time.monotonic() > restart:
                    restart = time.monotonic() + RESTARTS_S
                    watch.peer = self._started_again(watch.peer)
                self._look(watch)
                if time.monotonic() >= due:
                    due = time.monotonic() + self.settings.status_s
                    self._publish(watch, is_history_due=written % HISTORY_FACTOR == 0)
                    written += 1
                if stop.wait(self.settings.look_s):
                    return
        finally:
            with suppress(PeerFailed):  # it has told in its log, and all that was seen is still sent
                watch.peer.stop()
            self._look(watch)
            for examining in filter(None, (examiner, watch.recomputer)):
                examining.close()
            if watch.recorder is not None and not watch.recorder.is_full:
                watch.recorder.write(database)
            watch.steward.close()
            self._publish(watch, is_history_due=True)
            if watch.uploader is not None:
                watch.uploader.close()

    def _watch(self, database: MonitorDatabase, peer: Peer) -> Watch:
        steward = Steward(
            self.card, self.run_name, self.folder, peer.folder, self.folder / DATABASE, self.token,
            self.settings.licence, self._say,
        )  # fmt: skip
        observer = Observer(database, self.card.averaging.matchmaking_s, explained(self.card))
        recorder = Recorder(self.folder, self.card, self.settings.record_mb) if self.settings.record else None
        return Watch(peer, database, observer, OwnProblems(peer.folder), steward, self._recomputer(peer), recorder)

    def _send_by(self, card: RunCard, watch: Watch) -> None:
        """Send what is kept to the repository that the card names now, if it names this monitor or none."""
        if watch.sends_by == (sends_by := (card.checkpoints, card.monitors)):
            return
        if watch.uploader is not None:
            watch.uploader.close(0.0)  # what is on its way to the one of before goes on
        watch.uploader, watch.sends_by = self._uploader(card, watch.peer), sends_by

    def _uploader(self, card: RunCard, peer: Peer) -> Uploader | None:
        if card.checkpoints is None:
            return None
        if card.monitors and own_id(peer.folder) not in card.monitors:
            self._say(
                f"Nothing is sent to {card.checkpoints}: the run's card names its monitors "
                f"({', '.join(card.monitors)}), and this one has another key, by which nobody would take a "
                "checkpoint. Start it in the folder with theirs, or name its id too: dalle-lib run edit --monitors."
            )
            return None
        return Uploader(
            card.checkpoints, self.folder, peer.folder, self.folder / DATABASE, self.token, self._is_private,
            self._say, card.monitors,
        )  # fmt: skip

    def _examiner(self, peer: Peer) -> Examiner | None:
        try:
            return Examiner(self.card, self.folder, peer.folder, self.folder / DATABASE, self._say, self.settings)
        except (OSError, ValueError) as error:
            self._say(f"Checkpoints are not examined: {in_one_line(error)}")
            return None

    def _recomputer(self, peer: Peer) -> Recomputer | None:
        try:
            return Recomputer(self.card, peer.folder, self.folder / DATABASE)
        except ValueError as error:
            self._say(f"Losses that peers tell are not recomputed: {in_one_line(error)}")
            return None

    def _started_again(self, peer: Peer) -> Peer:
        try:
            return self._start()
        except (OSError, ValueError, RuntimeError) as error:  # a PeerFailed, with a full disk, is a RuntimeError
            self._say(f"The monitor's peer could not be started: {in_one_line(error)}")
            return peer

    def _look(self, watch: Watch) -> None:
        """Take in what the peer sees now, its new checkpoints, and what is wrong. What fails is tried again."""
        database, own, place = watch.database, watch.own, watch.peer.folder
        try:
            self._send_by(watch.steward.card, watch)
            status = SwarmStatus.read(place)
            found = own.now(status, database, watch.uploader.problem if watch.uploader else "", watch.steward.problem)
            if status is not None:
                told, problems = watch.observer.take_in(status, self._key, watch.steward.card.state == "open")
                found += problems
                if watch.recomputer is not None:
                    watch.recomputer.note(status, told)
                if watch.recorder is not None:
                    self._record(watch, status, told)
            self._tell(new for new in note(found, database, time.time()) if new is not own.failure)  # told already
            for aside in go_back(self.folder, place, database):
                self._say(f"The run has gone back: checkpoints of the part that does not go on are now in {aside}.")
                if watch.recomputer is not None:
                    watch.recomputer.forget()
            for epoch in note_new(place, database):
                self._say(f"Checkpoint of epoch {epoch:,}.")
            remove_old(place, database)
        except Exception as error:  # whatever it is, the run must be followed on
            logger.exception("this look at the run failed")
            self._tell(filter(None, [own.failed(error)]))

    def _record(self, watch: Watch, status: SwarmStatus, told: SwarmStatus) -> None:
        """Record this look, without those who are told of by a tag."""
        look = SignedLook.read(watch.peer.folder)
        if look is None or look.time != status.time or watch.recorder.is_full:
            return  # the peer has looked again just now
        ids = zip(status.peers, told.peers, strict=True)
        hidden = {seen.peer_id for seen, each in ids if seen.peer_id != each.peer_id}
        hidden |= tagged_among(look.records, self._key, tags_in(watch.database, status.time))  # who leaves, too
        watch.recorder.note(look, hidden, watch.database)
        if watch.recorder.is_full:
            self._say(f"The recordings have {self.settings.record_mb:g} MB: nothing more is recorded.")

    def _tell(self, found: Iterable[Problem]) -> None:
        for line in [problem.told for problem in found]:
            self._say(f"Problem: {line}")
            for teller in self._tellers:
                teller.tell(line)

    def _publish(self, watch: Watch, is_history_due: bool) -> None:
        card, database = watch.steward.card, watch.database
        try:
            self._status = fitted(status_of(card, database, time.time()))
            publish(self.folder, STATUS, self._status)
            if is_history_due:
                history = history_of(card, database, self.folder)
                publish(self.folder, HISTORY, history)
                write_page(self.folder, card, self._status, history)
                if card.monitors and own_id(watch.peer.folder) in card.monitors:
                    confirm(self.folder, card, database, PeerKey.load(watch.peer.folder / IDENTITY))
        except Exception as error:  # as above
            logger.exception("the status was not written")
            self._tell(filter(None, [watch.own.failed(error)]))
