"""Whose claims do not fit: the weights of averages as other peers saw them, and the clock.

Each record says the sum of the weights of its peer's own gradients, which is what the peer is credited with, and the
weights of a few other peers in the last average, drawn by a hash (`swarm.process.evidence`). An honest peer claims what
the others saw.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from sqlite3 import Row

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.evidence import MAX_WITNESSED, drawn, witnessed
from dalle_lib.swarm.process.status import SwarmStatus

Weights = dict[str, dict[int, float]]
"""Weights of peers in averages, by peer and epoch."""
WINDOW = 30
"""Epochs over which claims are compared."""
MIN_ROUNDS, MIN_SEEN = 8, 0.7
"""Epochs of these for which a peer must have been there, and the share of them of which others must tell its weight."""
MIN_USERS = 2
"""Users who must tell a peer's weight in an epoch, its own not among them: one alone may lie."""
FACTOR = 1.2
"""Multiple of what others saw that is not yet flagged: a part that did not reach a reducer is missing there."""
MOST = 3.0
"""Multiple of the mean weight that is allowed for an epoch of which only one user tells: a friend may help."""
EXCESS_S = 120.0
"""Seconds of computing that are claimed in the window beyond those that passed, and not yet flagged: clocks differ."""
TOLD = 0.8
"""How often an honest peer's record of an average comes in time."""
CHANCE = 0.05
"""Chance that fewer than MIN_USERS users tell of a peer that was there, from which on nobody can be said to miss it."""
MISSED = 0.7
"""Share of the epochs in which others missed a peer that cannot have counted; in the others they may have by chance."""
LATE = 3
"""Epochs before the run's of which a weight is believed; records are of the last average."""


def believed(status: SwarmStatus) -> SwarmStatus:
    """Return a look without what peers tell of others that they cannot have drawn; call it before ids are hidden."""
    count = len(status.peers)
    peers = [replace(peer, witnessed=drawn(peer.witnessed, peer.peer_id, count)) for peer in status.peers]
    return replace(status, peers=peers)


def note_weights(status: SwarmStatus, epoch: int | None, database: MonitorDatabase) -> None:
    """Remember what the peers tell of each other's weights. `epoch` is the run's."""
    if epoch is None:
        return
    # Who is on the board only now and then is still told of.
    ids = {peer.peer_id for peer in status.peers} | {row["peer"] for row in database.rows("SELECT peer FROM claims")}
    for peer in status.peers:
        told = witnessed(peer.witnessed, ids)
        if told is None or not epoch - LATE <= told[0] <= epoch:
            continue
        for place, (subject, weight) in enumerate(told[1].items()):
            database.insert(
                "weights", epoch=told[0], witness=peer.peer_id, place=place, user=status.user_of(peer), peer=subject,
                weight=weight,
            )  # fmt: skip


def note_claim(database: MonitorDatabase, peer: str, epoch: int, **amounts: float) -> None:
    """Remember what a peer claims, by the columns of `claims`; call it with the same ones each time.

    These are: `samples` and `counted` that it is credited with for the `rounds` epochs of the run before `epoch`,
    `sent_bytes` and `received_bytes`, and `excess_s`, seconds of computing that it claims, too, and that have not
    passed.
    """
    if any(amounts.values()):
        values, sums = (", ".join(pattern.format(name) for name in amounts) for pattern in (":{0}", "{0} = {0} + :{0}"))
        database.change(
            f"INSERT INTO claims (epoch, peer, {', '.join(amounts)}) VALUES (:epoch, :peer, {values}) "
            f"ON CONFLICT DO UPDATE SET {sums}",
            peer=peer, epoch=epoch, **amounts,
        )  # fmt: skip


def forget_old(epoch: int, database: MonitorDatabase) -> None:
    """Forget what is no longer compared when the run is at an epoch."""
    for table in "claims", "weights":
        database.change(f"DELETE FROM {table} WHERE epoch <= :since", since=epoch - WINDOW - LATE)


class Auditor:
    """Compares claims to what others saw, once in each epoch; what it has read of earlier ones is not read again."""

    def __init__(self, database: MonitorDatabase) -> None:
        self.database = database
        self._epoch, self._told, self._over = -1, {}, {}

    def overclaims(self, status: SwarmStatus, is_split: bool = False) -> Iterator[tuple[str, str]]:
        """Yield the ids of peers that claim more than they can have done in the last epochs, and what, in words.

        Nobody is judged anew while the run `is_split`: its epoch is not that of those ahead, who then seem to claim the
        weights of many rounds for one.
        """
        if status.epoch != self._epoch and not is_split:
            self._over = dict(self._judged(status))
        there = {peer.peer_id for peer in status.peers}
        yield from ((peer, told) for peer, told in self._over.items() if peer in there)

    def _judged(self, status: SwarmStatus) -> Iterator[tuple[str, str]]:
        since, told = status.epoch - WINDOW, self._read(status.epoch)
        seen, seen_by_one = _weights_seen(status, told)
        claims = self.database.rows("SELECT * FROM claims WHERE epoch > :since", since=since)
        missed = _missed(status, claims, told, seen)
        rows = self.database.rows(
            "SELECT peer, SUM(rounds) AS rounds, SUM(counted) AS counted, SUM(excess_s) AS excess_s FROM claims "
            "WHERE epoch > :since GROUP BY peer", since=since,
        )  # fmt: skip
        there = {peer.peer_id: peer for peer in status.peers}
        for row in rows:
            if (peer := there.get(row["peer"])) is None:
                continue
            name = f"{peer.name} ({peer.peer_id[-6:]})"
            weights, by_one = list(seen[peer.peer_id].values()), list(seen_by_one[peer.peer_id].values())
            most = most_counted(row["rounds"], weights, by_one, missed[peer.peer_id])
            if most is not None and row["counted"] > most:
                claimed, mean = row["counted"] / row["rounds"], sum(weights) / row["rounds"]
                told = f"{name} claims a mean weight of {claimed:,.0f} samples in averages, and others saw {mean:,.0f}."
                yield row["peer"], told
            elif row["excess_s"] > EXCESS_S:
                yield row["peer"], f"{name} claims {row['excess_s']:,.0f} seconds of computing more than have passed."

    def _read(self, epoch: int) -> list[Row]:
        """Return the weights that were told of the last epochs; those of which nobody tells any more are known."""
        since, settled = epoch - WINDOW - 1, self._epoch - LATE
        known = {of: rows for of, rows in self._told.items() if since <= of < settled} if epoch > self._epoch else {}
        first = max(since, settled) if known else since
        new = defaultdict(list)
        for row in self.database.rows("SELECT * FROM weights WHERE epoch >= :first", first=first):
            new[row["epoch"]].append(row)
        self._epoch, self._told = epoch, known | new
        return [row for rows in self._told.values() for row in rows]


def most_counted(rounds: int, seen: list[float], seen_by_one: list[float], missed: int = 0) -> float | None:
    """Return the largest sum of weights that is not flagged, given those that others saw; None for too few of them.

    The last average before the `rounds` epochs may be among those that are claimed. Those that nobody saw may have been
    as large as the largest: others see little of a peer while few are there, and its weight is large then. Not so those
    that are `missed`: so many were there, and told of others, that they would have seen it.
    """
    if rounds < MIN_ROUNDS or len(seen) + missed < MIN_SEEN * rounds:
        return None
    if not seen:
        return 0.0
    largest = max(*seen, min(max(seen_by_one, default=0.0), MOST * statistics.fmean(seen)))
    return FACTOR * (sum(seen) + max(0.0, rounds + 1 - len(seen) - MISSED * missed) * largest)


def _weights_seen(status: SwarmStatus, told: Sequence[Row]) -> tuple[Weights, Weights]:
    """Return each peer's weights by epoch as several other users saw them, the median of what they tell, and as one."""
    told_of = defaultdict(dict)
    for row in told:
        told_of[row["peer"], row["epoch"]][row["user"]] = row["weight"]
    users = {peer.peer_id: status.user_of(peer) for peer in status.peers}
    seen, seen_by_one = defaultdict(dict), defaultdict(dict)
    for (peer, epoch), by_user in told_of.items():
        others = [weight for user, weight in by_user.items() if user != users.get(peer)]
        if others:
            (seen if len(others) >= MIN_USERS else seen_by_one)[peer][epoch] = statistics.median_high(others)
    return seen, seen_by_one


def _missed(status: SwarmStatus, claims: Sequence[Row], told: Sequence[Row], seen: Weights) -> Counter[str]:
    """Return of how many epochs, in which each peer was there, the others would have told its weight and did not.

    Where the round of an epoch was split, those who averaged with the peer count alone.
    """
    told_in = defaultdict(list)
    for row in told:
        told_in[row["epoch"]].append(row)
    groups = {epoch: _groups(rows) for epoch, rows in told_in.items()}
    users, chances = {peer.peer_id: status.user_of(peer) for peer in status.peers}, {}
    missed = Counter()
    for row in claims:
        if (peer := row["peer"]) not in users:
            continue
        for epoch in range(max(row["epoch"] - row["rounds"], min(told_in, default=row["epoch"])), row["epoch"]):
            if epoch in seen[peer]:
                continue
            group = next((group for group in groups.get(epoch, ()) if peer in group), None)
            if (epoch, group) not in chances:
                rows = told_in.get(epoch, ())
                chances[epoch, group] = _chances([row for row in rows if group is None or row["peer"] in group])
            missed[peer] += _chance_of_few(chances[epoch, group], users[peer]) <= CHANCE
    return missed


def _groups(told: Sequence[Row]) -> list[frozenset[str]]:
    """Return the groups in which peers averaged in an epoch, by who tells of whom."""
    groups = []
    for row in told:
        pair = frozenset((row["witness"], row["peer"]))
        joined = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [pair.union(*joined)]
    return groups


def _chances(told: Sequence[Row]) -> dict[str, float]:
    """Return how likely each user is to tell of a peer in an average of which this is told."""
    witnesses, there = defaultdict(set), set()
    for row in told:
        witnesses[row["user"]].add(row["witness"])
        there |= {row["witness"], row["peer"]}
    return {
        user: 1 - (1 - TOLD * min(1.0, MAX_WITNESSED / (len(there) - 1))) ** len(peers)
        for user, peers in witnesses.items()
    }


def _chance_of_few(chances: Mapping[str, float], own: str) -> float:
    """Return how likely it is that fewer than MIN_USERS other users tell of a peer of `own` that was there."""
    nobody, one = 1.0, 0.0
    for user, chance in chances.items():
        if user != own:
            nobody, one = nobody * (1 - chance), one * (1 - chance) + nobody * chance
            if nobody + one <= CHANCE:
                break
    return nobody + one
