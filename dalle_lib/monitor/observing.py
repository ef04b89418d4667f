"""From looks at the swarm to what is remembered: who is there, and how the run goes."""

import math
import statistics

from dalle_lib.monitor.alarms import Problem, problems
from dalle_lib.monitor.anonymous import anonymised, tags_in
from dalle_lib.monitor.auditing import Auditor, believed, forget_old, note_weights
from dalle_lib.monitor.averaging import counted_share, traffic_mbps
from dalle_lib.monitor.crediting import EARLIER_S, HOUR_S, Crediting
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.drift import Spread
from dalle_lib.swarm.process.status import SwarmStatus

MINUTE_S = 60.0
MAX_STARTS = 500
"""New starts that are remembered in an hour, of all peers; nobody honest makes more."""
BACK = 3
"""Epochs by which the run must be behind the last one that was noted, for that to have been a mistake."""
RECENT = 3
"""Epochs by which a spread of parameters may be older than the epoch with which it is noted."""


class Observer:
    """Takes looks at the swarm into the data base.

    No epoch is shorter than `shortest_epoch_s`, whatever peers say; parameters may be `explained` apart.
    """

    def __init__(self, database: MonitorDatabase, shortest_epoch_s: float = 1.0, explained: float = math.inf) -> None:
        self.database, self.auditor, self._shortest_epoch_s = database, Auditor(database), shortest_epoch_s
        self._epoch, self._explained = None, explained
        self._spread: Spread | None = None
        """How far parameters were apart at the last look that could tell it: where epochs are short, few looks can."""

    def take_in(self, status: SwarmStatus, key: bytes, is_open: bool) -> tuple[SwarmStatus, list[Problem]]:
        """Remember one look, and return what was remembered of it, and what is wrong in a run that `is_open` or not.

        That is without what peers cannot know of others, and has tags, made with `key`, for who wants no name told.
        """
        told = anonymised(believed(status), key, tags_in(self.database, status.time))
        self.note(told)
        return told, list(problems(told, self.database, self.auditor, is_open, self._explained))

    def note(self, status: SwarmStatus) -> None:
        """Remember one look. One that is not newer than the last changes nothing."""
        with self.database.writing():
            last = self.database.row("SELECT MAX(last_seen) AS at FROM starts")["at"]
            if last is not None and last - status.time > EARLIER_S:
                last = self._set_back(status.time)
            if last is not None and status.time <= last:
                return
            self._epoch, self._spread = status.median_epoch, status.spread or self._spread
            query = "SELECT COUNT(*) FROM starts WHERE last_seen > :since AND first_seen > :since"
            left = MAX_STARTS - self.database.count(query, since=status.time - HOUR_S)
            since = status.time if last is None else last
            crediting = Crediting(self.database, status, since, self._shortest_epoch_s, left)
            for peer in status.peers:
                crediting.credit(peer)
            note_weights(status, self._epoch, self.database)
            forget_old(status.epoch, self.database)
            self._note_moment(status)
            self._note_epochs(status)

    def _set_back(self, now: float) -> float:
        """Take back what was seen by a clock that was ahead, or nothing would be new until then; return the last look.

        The looks of that time count as those of just before now.
        """
        before = now - MINUTE_S
        columns = {"starts": ("last_seen", "first_seen", "changed", "origin", "weighed"), "epochs": ("ended",)}
        for table, names in columns.items():
            for name in names:
                self.database.change(f"UPDATE {table} SET {name} = :before WHERE {name} > :before", before=before)
        return before

    def _note_moment(self, status: SwarmStatus) -> None:
        self.database.insert(
            "moments", minute=int(status.time // MINUTE_S), epoch=self._epoch, peers=len(status.at_work),
            users=len({status.user_of(peer) for peer in status.at_work}),
        )  # fmt: skip

    def _note_epochs(self, status: SwarmStatus) -> None:
        """Note the epoch in which the median user is now, if it is a new one; those that nobody saw have no row.

        A crowd of liars may have been the median for a while; what they said stays, but is not the last one for long.
        """
        epoch, last = self._epoch, self.database.row("SELECT * FROM epochs ORDER BY ended DESC, epoch DESC LIMIT 1")
        if not epoch or (last is not None and last["epoch"] - BACK <= epoch <= last["epoch"]):
            return
        before = self.database.row(
            "SELECT * FROM epochs WHERE epoch <= :epoch ORDER BY epoch DESC LIMIT 1", epoch=epoch
        )
        if before is not None and before["epoch"] == epoch and epoch < last["epoch"]:
            return
        took_s = None
        if before is not None and before["epoch"] < epoch:
            took_s = (status.time - before["ended"]) / (epoch - before["epoch"])
        losses = [peer.loss for peer in status.peers if peer.loss is not None and abs(peer.epoch - epoch) <= 1]
        up, down = traffic_mbps(self.database, status, epoch)
        is_recent = self._spread is not None and abs(self._spread.epoch - epoch) <= RECENT
        spread = self._spread if is_recent else None
        # Medians, and the run's own pace, because one peer can claim any loss and any speed.
        self.database.insert(
            "epochs", epoch=epoch, ended=status.time, seconds=took_s, peers=len(status.at_work),
            samples_per_s=status.target_batch_size / took_s if took_s else None,
            loss=statistics.median(losses) if losses else None, counted_share=counted_share(self.database, epoch),
            up_mbps=up, down_mbps=down, spread=spread and spread.most, farthest=spread and spread.farthest,
        )  # fmt: skip
