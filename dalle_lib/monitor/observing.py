"""From looks at the swarm to what is remembered: what each peer is credited with, and how the run goes."""

import statistics
from collections.abc import Sequence

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

EARLIER_S = 600.0
"""Seconds before a peer was first seen that it is credited with: what it told then may have been missed."""
ABSENT_S = 150.0
"""Seconds without a peer's record after which it was absent; records live for a minute."""
HOUR_S, MINUTE_S = 3600.0, 60.0
MAX_STARTS, MAX_STARTS_OF_ONE = 500, 12
"""New starts that are remembered in an hour, of all peers and of one; nobody honest makes more."""
COUNTERS = ("samples", "compute_s", "counted")
"""What a peer says that it has done since it started, which only grows."""


class Observer:
    """Takes looks at the swarm into the data base. Peers only claim what they did; here it is bounded by the clock.

    Between two looks at a peer, all its starts together, it can have computed no longer than the time that passed, and
    no more samples than all peers together in its epochs: what it claims beyond is not credited. What it did while
    nobody looked counts, if it is still there afterwards.
    """

    def __init__(self, database: MonitorDatabase) -> None:
        self.database, self._left = database, 0

    def note(self, status: SwarmStatus) -> None:
        """Remember one look. One that is not newer than the last changes nothing."""
        with self.database.writing():
            last = self.database.row("SELECT MAX(last_seen) AS at FROM starts")["at"]
            if last is not None and status.time <= last:
                return
            query = "SELECT COUNT(*) FROM starts WHERE last_seen > :since AND first_seen > :since"
            self._left = MAX_STARTS - self.database.count(query, since=status.time - HOUR_S)
            for peer in status.peers:
                self._credit(peer, status)
            self._note_moment(status)
            self._note_epochs(status)

    def _credit(self, peer: PeerStatus, status: SwarmStatus) -> None:
        now, started = status.time, min(peer.started_at, status.time)
        known = self.database.row(
            "SELECT * FROM starts WHERE peer = :peer AND started = :started", peer=peer.peer_id, started=started
        )
        if known is None and not self._may_be_new(peer.peer_id, now):
            return
        seen = self.database.row("SELECT MAX(last_seen) AS at FROM starts WHERE peer = :peer", peer=peer.peer_id)["at"]
        since = max(started, now - EARLIER_S) if seen is None else max(seen, started) if known is None else seen
        passed_s = max(0.0, now - since)
        before = {name: known[name] if known is not None else 0.0 for name in COUNTERS}
        claimed = {name: max(0.0, getattr(peer, name) - before[name]) for name in COUNTERS}
        epochs = peer.epoch - (known["epoch"] if known is not None else peer.epoch)
        most = status.target_batch_size * (max(0, epochs) + 1)
        bounds = {"samples": most, "compute_s": passed_s, "counted": most}
        credit = {name: min(claimed[name], bounds[name]) for name in COUNTERS}
        self.database.insert(
            "starts", peer=peer.peer_id, started=started, user=status.user_of(peer), name=peer.name, team=peer.team,
            hardware=peer.hardware, kit=peer.kit, first_seen=known["first_seen"] if known is not None else now,
            last_seen=now, epoch=peer.epoch, samples_per_s=peer.samples_per_s, loss=peer.loss,
            **{name: max(before[name], getattr(peer, name)) for name in COUNTERS},
        )  # fmt: skip
        was_there = (seen is not None and now - seen <= ABSENT_S) or known is None
        self.database.change(
            "INSERT INTO credits VALUES (:hour, :user, :peer, :samples, :compute_s, :present_s, :counted) "
            "ON CONFLICT DO UPDATE SET samples = samples + :samples, compute_s = compute_s + :compute_s, "
            "present_s = present_s + :present_s, counted = counted + :counted",
            hour=int(now // HOUR_S), user=status.user_of(peer), peer=peer.peer_id,
            present_s=max(credit["compute_s"], passed_s if was_there else 0.0), **credit,
        )  # fmt: skip

    def _may_be_new(self, peer_id: str, now: float) -> bool:
        """Return whether a new start of a peer is remembered now, or not before others are an hour old."""
        query = "SELECT COUNT(*) FROM starts WHERE peer = :peer AND first_seen > :since"
        if self._left <= 0 or self.database.count(query, peer=peer_id, since=now - HOUR_S) >= MAX_STARTS_OF_ONE:
            return False
        self._left -= 1
        return True

    def _note_moment(self, status: SwarmStatus) -> None:
        self.database.insert(
            "moments", minute=int(status.time // MINUTE_S), epoch=_epoch(status.peers), peers=len(status.peers),
            users=len({status.user_of(peer) for peer in status.peers}),
        )  # fmt: skip

    def _note_epochs(self, status: SwarmStatus) -> None:
        """Note the epoch in which the median peer is now, if it is a new one; those that nobody saw have no row."""
        epoch = _epoch(status.peers)
        last = self.database.row("SELECT MAX(epoch) AS epoch, MAX(ended) AS ended FROM epochs")
        if epoch is None or epoch <= (last["epoch"] or 0):
            return
        took_s = None if last["ended"] is None else (status.time - last["ended"]) / (epoch - last["epoch"])
        losses = [peer.loss for peer in status.peers if peer.loss is not None and abs(peer.epoch - epoch) <= 1]
        # Medians, and the run's own pace, because one peer can claim any loss and any speed.
        self.database.insert(
            "epochs", epoch=epoch, ended=status.time, seconds=took_s, peers=len(status.peers),
            samples_per_s=status.target_batch_size / took_s if took_s else None,
            loss=statistics.median(losses) if losses else None,
        )  # fmt: skip


def _epoch(peers: Sequence[PeerStatus]) -> int | None:
    return statistics.median_low(peer.epoch for peer in peers) if peers else None
