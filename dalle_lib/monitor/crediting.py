"""What each peer is credited with: what it says that it did, bounded by the clock, in epochs in which it counted."""

from dataclasses import dataclass
from sqlite3 import Row

from dalle_lib.monitor.auditing import note_claim
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

EARLIER_S = 120.0
"""Seconds before the last look for which a peer that is new can be credited: what it told then may have been missed.
Peers post every 20 s; with each new id somebody can claim so many seconds that they were not there."""
ABSENT_S = 150.0
"""Seconds without a peer's record after which it was absent; records live for a minute."""
HOUR_S = 3600.0
MAX_STARTS_OF_USER, MAX_STARTS_OF_ONE = 100, 12
"""New starts that are remembered in an hour, of all peers of one user, and of one; nobody honest makes more. Without
the first, one user could have no newcomer of others credited."""
WORK, COUNTERS = ("samples", "compute_s"), ("samples", "compute_s", "counted")
"""What a peer says that it has done since it started, which only grows: work, and the weight of its gradients."""
TRAFFIC = ("sent_bytes", "received_bytes")
"""What it says of averaging, which brings no credit and is not bounded."""
OVERSHOOT = 2.0
"""Samples of one peer in an epoch, in target batches, that are credited: peers go on until they know of its end."""
SPAN, SPAN_S = 2, 60.0
"""Epochs before the run's, or seconds if those are more, whose work counts as soon as a peer's gradient does: averages
may be an epoch late, and records a minute."""


@dataclass(frozen=True)
class Start:
    """A start of a peer, as it was known before a look."""

    known: Row | None
    is_same: bool
    """Whether it is also the start that changed last, so that its credit goes on."""
    origin: float
    """From when on it is credited, in seconds since 1970."""
    origin_epoch: int | None
    """The run's epoch then; None if nobody looked."""

    def of(self, column: str, otherwise: float = 0.0) -> float:
        """Return what is known of a start whose credit goes on."""
        return self.known[column] if self.is_same else otherwise


class Crediting:
    """Credits peers at one look. Peers only claim what they did; here it is bounded.

    All starts of a peer together can have computed no longer than the time that passed, and no more samples than the
    epochs of the run that passed hold: what a peer claims beyond is not credited. What it did while nobody looked
    counts, if it is still there afterwards. What it claims while it is flagged for its claims does not.

    Work waits until the peer's gradient has counted in an average; then that of the last SPAN epochs is given, and what
    is older, in which it did not count, is not. While no other peer is at work, one has nobody to average with, and
    needs no weight.
    """

    def __init__(
        self, database: MonitorDatabase, status: SwarmStatus, last: float, shortest_epoch_s: float, left: int
    ) -> None:
        """`last` is when somebody was seen last, `left` how many new starts may still be remembered."""
        self.database, self._status, self._last, self._left = database, status, last, left
        self._now, self._epoch, self._shortest_epoch_s = status.time, status.median_epoch, shortest_epoch_s
        query = "SELECT ended FROM epochs WHERE epoch <= :epoch ORDER BY epoch DESC LIMIT 1"
        began = database.row(query, epoch=(self._epoch or 0) - SPAN)
        self._since = 0.0 if began is None else min(began["ended"], self._now - SPAN_S)

    def credit(self, peer: PeerStatus) -> None:
        """Take in what a peer says now, and credit it."""
        if (start := self._start_of(peer)) is None:
            return
        told = (*COUNTERS, *TRAFFIC)
        before = {name: start.known[name] if start.known is not None else 0.0 for name in told}
        claimed = {name: max(0.0, getattr(peer, name) - before[name]) for name in told}
        credit = self._within_bounds(peer, start, claimed)
        query = "SELECT COUNT(*) FROM alarms WHERE kind = 'claims' AND subject = :peer AND until IS NULL"
        is_flagged = self.database.count(query, peer=peer.peer_id) > 0
        given, waiting = self._given(peer, start, dict.fromkeys(COUNTERS, 0.0) if is_flagged else credit)
        self._give(peer, start, given)
        self._remember(peer, start, claimed, credit, waiting)

    def _start_of(self, peer: PeerStatus) -> Start | None:
        """Return what is known of a start, or None for a new one that is not remembered now."""
        query = "SELECT * FROM starts WHERE peer = :peer AND started = :started"
        known = self.database.row(query, peer=peer.peer_id, started=peer.started_at)
        query = "SELECT * FROM starts WHERE peer = :peer ORDER BY changed DESC LIMIT 1"
        newest = self.database.row(query, peer=peer.peer_id)
        if known is not None and newest["started"] == known["started"]:
            return Start(known, True, known["origin"], known["origin_epoch"])
        if known is None and not self._may_be_new(peer.peer_id, self._status.users.get(peer.peer_id)):
            return None
        # That is after all that its other starts were credited with, and not long before the last look without it.
        changed = newest["changed"] if newest is not None else 0.0
        origin = max(min(peer.started_at, self._now), self._last - EARLIER_S, changed)
        query = "SELECT epoch FROM epochs WHERE ended <= :origin ORDER BY ended DESC, epoch DESC LIMIT 1"
        ended = self.database.row(query, origin=origin)
        return Start(known, False, origin, None if ended is None else ended["epoch"])

    def _may_be_new(self, peer_id: str, user: str | None) -> bool:
        """Return whether a new start of a peer is remembered now, or not before others are an hour old.

        `user` is whom its access token names, if any: a name that peers give themselves may be that of many.
        """
        if self._left <= 0:
            return False
        for column, one, most in ("peer", peer_id, MAX_STARTS_OF_ONE), ("user", user, MAX_STARTS_OF_USER):
            query = f"SELECT COUNT(*) FROM starts WHERE last_seen > :since AND first_seen > :since AND {column} = :one"
            if self.database.count(query, one=one, since=self._now - HOUR_S) >= most:  # of no user there are none
                return False
        self._left -= 1
        return True

    def _within_bounds(self, peer: PeerStatus, start: Start, claimed: dict[str, float]) -> dict[str, float]:
        """Return what is believed of new claims, and note what is not."""
        passed = 0 if start.origin_epoch is None else max(0, self._epoch - start.origin_epoch)
        seconds = self._now - start.origin
        epochs = 1 + min(passed, int(seconds / self._shortest_epoch_s))
        samples = OVERSHOOT * self._status.target_batch_size * epochs
        limits = {"samples": samples, "compute_s": seconds, "counted": samples}
        if not start.is_same and peer.started_at < self._last - EARLIER_S:
            return dict.fromkeys(COUNTERS, 0.0)
        credit = {name: max(0.0, min(claimed[name], limits[name] - start.of(f"credited_{name}"))) for name in COUNTERS}
        if start.origin_epoch is not None:
            rounds = self._epoch - start.known["run_epoch"] if start.is_same else epochs
            excess_s = claimed["compute_s"] - credit["compute_s"]
            note_claim(
                self.database, peer.peer_id, self._epoch, rounds=max(0, rounds), counted=credit["counted"],
                excess_s=excess_s, samples=credit["samples"], **{name: claimed[name] for name in TRAFFIC},
            )  # fmt: skip
        return credit

    def _given(
        self, peer: PeerStatus, start: Start, credit: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return what a peer is given now, and what work waits and since when (`weighed`)."""
        # Each says itself whether it is paused: several who do so beside nobody at work are not each alone.
        is_alone = not peer.is_held and all(other.peer_id == peer.peer_id for other in self._status.at_work)
        waiting = {name: start.of(f"waiting_{name}") + credit[name] for name in WORK}
        weighed = start.of("weighed", start.origin)
        if credit["counted"] <= 0 and not is_alone:
            named = {f"waiting_{name}": work for name, work in waiting.items()}
            return dict.fromkeys(COUNTERS, 0.0), {**named, "weighed": weighed}
        share = min(1.0, (self._now - self._since) / max(1.0, self._now - weighed))
        given = {name: share * work for name, work in waiting.items()}
        left = {f"waiting_{name}": 0.0 for name in WORK}
        return {**given, "counted": credit["counted"]}, {**left, "weighed": self._now}

    def _give(self, peer: PeerStatus, start: Start, given: dict[str, float]) -> None:
        seen = self.database.row("SELECT MAX(last_seen) AS at FROM starts WHERE peer = :peer", peer=peer.peer_id)["at"]
        was_there = seen is None or self._now - seen <= ABSENT_S
        present_s = self._now - (start.origin if seen is None else seen) if was_there else given["compute_s"]
        self.database.change(
            "INSERT INTO credits VALUES (:hour, :user, :peer, :samples, :compute_s, :present_s, :counted) "
            "ON CONFLICT DO UPDATE SET samples = samples + :samples, compute_s = compute_s + :compute_s, "
            "present_s = present_s + :present_s, counted = counted + :counted",
            hour=int(self._now // HOUR_S), user=self._status.user_of(peer), peer=peer.peer_id, present_s=present_s,
            **given,
        )  # fmt: skip

    def _remember(
        self,
        peer: PeerStatus,
        start: Start,
        claimed: dict[str, float],
        credit: dict[str, float],
        waiting: dict[str, float],
    ) -> None:
        known, has_changed = start.known, not start.is_same or any(claimed[name] for name in COUNTERS)
        self.database.insert(
            "starts", peer=peer.peer_id, started=peer.started_at, user=self._status.user_of(peer), name=peer.name,
            team=peer.team, hardware=peer.hardware, kit=peer.kit, last_seen=self._now, epoch=peer.epoch,
            first_seen=known["first_seen"] if known is not None else self._now, samples_per_s=peer.samples_per_s,
            loss=peer.loss, held=peer.held, origin=start.origin,
            run_epoch=max(self._epoch, start.of("run_epoch", 0)),  # as peers come and go, their median goes back
            origin_epoch=self._epoch if start.origin_epoch is None else start.origin_epoch,
            changed=self._now if has_changed else known["changed"],
            **{name: (known[name] if known is not None else 0.0) + new for name, new in claimed.items()},
            **{f"credited_{name}": start.of(f"credited_{name}") + credit[name] for name in COUNTERS}, **waiting,
        )  # fmt: skip
