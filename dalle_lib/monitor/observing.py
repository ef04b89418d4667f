"""From looks at the swarm to what is remembered: what each peer is credited with, and how the run goes."""

import statistics
from sqlite3 import Row

from dalle_lib.monitor.auditing import note_claim, note_weights
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

EARLIER_S = 120.0
"""Seconds before the last look for which a peer that is new can be credited: what it told then may have been missed.
Peers post every 20 s; with each new id somebody can claim so many seconds that they were not there."""
ABSENT_S = 150.0
"""Seconds without a peer's record after which it was absent; records live for a minute."""
HOUR_S, MINUTE_S = 3600.0, 60.0
MAX_STARTS, MAX_STARTS_OF_USER, MAX_STARTS_OF_ONE = 500, 100, 12
"""New starts that are remembered in an hour, of all peers, of all of one user, and of one; nobody honest makes more.
Without the second, one user could have no newcomer of others credited."""
COUNTERS = ("samples", "compute_s", "counted")
"""What a peer says that it has done since it started, which only grows."""
BACK = 3
"""Epochs by which the run must be behind the last one that was noted, for that to have been a mistake."""
OVERSHOOT = 2.0
"""Samples of one peer in an epoch, in target batches, that are credited: peers go on until they know of its end."""


class Observer:
    """Takes looks at the swarm into the data base. Peers only claim what they did; here it is bounded by the clock.

    All starts of a peer together can have computed no longer than the time that passed, and no more samples than the
    epochs of the run that passed hold: what a peer claims beyond is not credited. What it did while nobody looked
    counts, if it is still there afterwards. What it claims while it is flagged for its claims does not. No epoch is
    shorter than `shortest_epoch_s`, whatever peers say.
    """

    def __init__(self, database: MonitorDatabase, shortest_epoch_s: float = 1.0) -> None:
        self.database, self._shortest_epoch_s, self._left = database, shortest_epoch_s, 0
        self._epoch: int | None = None

    def note(self, status: SwarmStatus) -> None:
        """Remember one look. One that is not newer than the last changes nothing."""
        with self.database.writing():
            last = self.database.row("SELECT MAX(last_seen) AS at FROM starts")["at"]
            if last is not None and last - status.time > EARLIER_S:
                last = self._set_back(status.time)
            if last is not None and status.time <= last:
                return
            self._epoch = status.median_epoch
            query = "SELECT COUNT(*) FROM starts WHERE last_seen > :since AND first_seen > :since"
            self._left = MAX_STARTS - self.database.count(query, since=status.time - HOUR_S)
            for peer in status.peers:
                self._credit(peer, status, status.time if last is None else last)
            note_weights(status, self._epoch, self.database)
            self._note_moment(status)
            self._note_epochs(status)

    def _credit(self, peer: PeerStatus, status: SwarmStatus, last: float) -> None:
        now, epoch = status.time, self._epoch
        known = self.database.row(
            "SELECT * FROM starts WHERE peer = :peer AND started = :started", peer=peer.peer_id, started=peer.started_at
        )
        newest = self.database.row(
            "SELECT * FROM starts WHERE peer = :peer ORDER BY changed DESC LIMIT 1", peer=peer.peer_id
        )
        if known is None and not self._may_be_new(peer.peer_id, status.users.get(peer.peer_id), now):
            return
        seen = self.database.row("SELECT MAX(last_seen) AS at FROM starts WHERE peer = :peer", peer=peer.peer_id)["at"]
        before = {name: known[name] if known is not None else 0.0 for name in COUNTERS}
        claimed = {name: max(0.0, getattr(peer, name) - before[name]) for name in COUNTERS}
        is_same = known is not None and newest["started"] == known["started"]
        origin, origin_epoch = (
            (known["origin"], known["origin_epoch"]) if is_same else self._origin(peer, newest, now, last)
        )
        credited = {name: known[f"credited_{name}"] if is_same else 0.0 for name in COUNTERS}
        passed = 0 if origin_epoch is None else max(0, epoch - origin_epoch)
        epochs = 1 + min(passed, int((now - origin) / self._shortest_epoch_s))
        samples = OVERSHOOT * status.target_batch_size * epochs
        limits = {"samples": samples, "compute_s": now - origin, "counted": samples}
        is_known = is_same or peer.started_at >= last - EARLIER_S
        credit = {
            name: max(0.0, min(claimed[name], limits[name] - credited[name])) if is_known else 0.0 for name in COUNTERS
        }
        query = "SELECT COUNT(*) FROM alarms WHERE kind = 'claims' AND subject = :peer AND until IS NULL"
        given = dict.fromkeys(COUNTERS, 0.0) if self.database.count(query, peer=peer.peer_id) else credit
        has_changed = not is_same or any(claimed.values())
        self.database.insert(
            "starts", peer=peer.peer_id, started=peer.started_at, user=status.user_of(peer), name=peer.name,
            team=peer.team, hardware=peer.hardware, kit=peer.kit, last_seen=now, epoch=peer.epoch,
            first_seen=known["first_seen"] if known is not None else now, samples_per_s=peer.samples_per_s,
            loss=peer.loss, origin=origin, run_epoch=epoch,
            origin_epoch=epoch if origin_epoch is None else origin_epoch,
            changed=now if has_changed else known["changed"],
            **{name: before[name] + claimed[name] for name in COUNTERS},
            **{f"credited_{name}": credited[name] + credit[name] for name in COUNTERS},
        )  # fmt: skip
        if is_known and origin_epoch is not None:
            rounds = epoch - known["run_epoch"] if is_same else epochs
            excess_s = claimed["compute_s"] - credit["compute_s"]
            note_claim(self.database, peer.peer_id, epoch, max(0, rounds), credit["counted"], excess_s)
        was_there = seen is not None and now - seen <= ABSENT_S
        self.database.change(
            "INSERT INTO credits VALUES (:hour, :user, :peer, :samples, :compute_s, :present_s, :counted) "
            "ON CONFLICT DO UPDATE SET samples = samples + :samples, compute_s = compute_s + :compute_s, "
            "present_s = present_s + :present_s, counted = counted + :counted",
            hour=int(now // HOUR_S), user=status.user_of(peer), peer=peer.peer_id,
            present_s=now - (origin if seen is None else seen) if was_there or seen is None else given["compute_s"],
            **given,
        )  # fmt: skip

    def _may_be_new(self, peer_id: str, user: str | None, now: float) -> bool:
        """Return whether a new start of a peer is remembered now, or not before others are an hour old.

        `user` is whom its access token names, if any: a name that peers give themselves may be that of many.
        """
        if self._left <= 0:
            return False
        for column, one, most in ("peer", peer_id, MAX_STARTS_OF_ONE), ("user", user, MAX_STARTS_OF_USER):
            query = f"SELECT COUNT(*) FROM starts WHERE last_seen > :since AND first_seen > :since AND {column} = :one"
            if self.database.count(query, one=one, since=now - HOUR_S) >= most:  # of no user there are none
                return False
        self._left -= 1
        return True

    def _origin(self, peer: PeerStatus, newest: Row | None, now: float, last: float) -> tuple[float, int | None]:
        """Return from when on a start that is new is credited, and the run's epoch then, or None if nobody looked.

        That is after all that its other starts were credited with, and not long before the last look without it.
        """
        origin = max(min(peer.started_at, now), last - EARLIER_S, newest["changed"] if newest is not None else 0.0)
        query = "SELECT epoch FROM epochs WHERE ended <= :origin ORDER BY ended DESC, epoch DESC LIMIT 1"
        ended = self.database.row(query, origin=origin)
        return origin, None if ended is None else ended["epoch"]

    def _set_back(self, now: float) -> float:
        """Take back what was seen by a clock that was ahead, or nothing would be new until then; return the last look.

        The looks of that time count as those of just before now.
        """
        before = now - MINUTE_S
        columns = {"starts": ("last_seen", "first_seen", "changed", "origin"), "epochs": ("ended",)}
        for table, names in columns.items():
            for name in names:
                self.database.change(f"UPDATE {table} SET {name} = :before WHERE {name} > :before", before=before)
        return before

    def _note_moment(self, status: SwarmStatus) -> None:
        self.database.insert(
            "moments", minute=int(status.time // MINUTE_S), epoch=self._epoch, peers=len(status.peers),
            users=len({status.user_of(peer) for peer in status.peers}),
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
        # Medians, and the run's own pace, because one peer can claim any loss and any speed.
        self.database.insert(
            "epochs", epoch=epoch, ended=status.time, seconds=took_s, peers=len(status.peers),
            samples_per_s=status.target_batch_size / took_s if took_s else None,
            loss=statistics.median(losses) if losses else None,
        )  # fmt: skip
