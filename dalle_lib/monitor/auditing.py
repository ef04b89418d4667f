"""Whose claims do not fit: the weights of averages as other peers saw them, the clock, and losses that were drawn anew.

Each record says the sum of the weights of its peer's own gradients, which is what the peer is credited with, and the
weights of a few other peers in the last average, drawn by chance (`swarm.process.evidence`). An honest peer claims what
the others saw.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.evidence import witnessed
from dalle_lib.swarm.process.status import SwarmStatus

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
DRAWN, MIN_DRAWN, MIN_TOGETHER = 60, 8, 3
"""Losses, drawn anew last, by which peers are judged, the fewest of them, and the fewest for one checkpoint: where two
differ, nobody can tell which is wrong."""
SPREADS, MIN_SPREAD = 8.0, 0.002
"""Multiple of the usual distance from the others that still fits, and the least distance."""
MIN_MISFITS = 2
"""Losses of one peer, more than half of its own among those, that do not fit before it is flagged."""
LATE = 3
"""Epochs before the run's of which a weight is believed; records are of the last average."""


def note_weights(status: SwarmStatus, epoch: int | None, database: MonitorDatabase) -> None:
    """Remember what the peers tell of each other's weights. `epoch` is the run's."""
    if epoch is None:
        return
    ids = [peer.peer_id for peer in status.peers]
    for peer in status.peers:
        told = witnessed(peer.witnessed, ids)
        if told is None or not epoch - LATE <= told[0] <= epoch:
            continue
        for place, (subject, weight) in enumerate(told[1].items()):
            database.insert(
                "weights", epoch=told[0], witness=peer.peer_id, place=place, user=status.user_of(peer), peer=subject,
                weight=weight,
            )  # fmt: skip


def note_claim(database: MonitorDatabase, peer: str, epoch: int, rounds: int, counted: float, excess_s: float) -> None:
    """Remember what a peer is credited with, which it claims for the `rounds` epochs of the run before `epoch`.

    `excess_s` are seconds of computing that it claims, too, and that have not passed.
    """
    if rounds or counted or excess_s:
        database.change(
            "INSERT INTO claims VALUES (:epoch, :peer, :rounds, :counted, :excess_s) ON CONFLICT DO UPDATE "
            "SET rounds = rounds + :rounds, counted = counted + :counted, excess_s = excess_s + :excess_s",
            peer=peer, epoch=epoch, rounds=rounds, counted=counted, excess_s=excess_s,
        )  # fmt: skip


def overclaims(status: SwarmStatus, database: MonitorDatabase) -> Iterator[tuple[str, str]]:
    """Yield the ids of peers that claim more than they can have done in the last epochs, and what, in words."""
    since = status.epoch - WINDOW
    for table in "claims", "weights":
        database.change(f"DELETE FROM {table} WHERE epoch <= :since", since=since - LATE)
    seen, seen_by_one = _weights_seen(status, since - 1, database)
    rows = database.rows(
        "SELECT peer, SUM(rounds) AS rounds, SUM(counted) AS counted, SUM(excess_s) AS excess_s FROM claims "
        "WHERE epoch > :since GROUP BY peer", since=since,
    )  # fmt: skip
    there = {peer.peer_id: peer for peer in status.peers}
    for row in rows:
        if (peer := there.get(row["peer"])) is None:
            continue
        name = f"{peer.name} ({peer.peer_id[-6:]})"
        weights = seen.get(row["peer"], [])
        most = most_counted(row["rounds"], weights, seen_by_one.get(row["peer"], []))
        if most is not None and row["counted"] > most:
            claimed, mean = row["counted"] / row["rounds"], statistics.fmean(weights)
            told = f"{name} claims a mean weight of {claimed:,.0f} samples in averages, and others saw {mean:,.0f}."
            yield row["peer"], told
        elif row["excess_s"] > EXCESS_S:
            yield row["peer"], f"{name} claims {row['excess_s']:,.0f} seconds of computing more than have passed."


def most_counted(rounds: int, seen: list[float], seen_by_one: list[float]) -> float | None:
    """Return the largest sum of weights that is not flagged, given those that others saw; None for too few of them.

    The last average before the `rounds` epochs may be among those that are claimed. Those that nobody saw may have been
    as large as the largest: others see little of a peer while few are there, and its weight is large then.
    """
    if rounds < MIN_ROUNDS or len(seen) < MIN_SEEN * rounds:
        return None
    largest = max(*seen, min(max(seen_by_one, default=0.0), MOST * statistics.fmean(seen)))
    return FACTOR * (sum(seen) + max(0, rounds + 1 - len(seen)) * largest)


def _weights_seen(
    status: SwarmStatus, since: int, database: MonitorDatabase
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return each peer's weights in epochs as several other users saw them, the median of what they tell, and as one.

    Epochs from `since` on are looked at.
    """
    told = defaultdict(dict)
    for row in database.rows("SELECT * FROM weights WHERE epoch >= :since", since=since):
        told[row["peer"], row["epoch"]][row["user"]] = row["weight"]
    users = {peer.peer_id: status.user_of(peer) for peer in status.peers}
    seen, seen_by_one = defaultdict(list), defaultdict(list)
    for (peer, _), by_user in told.items():
        others = [weight for user, weight in by_user.items() if user != users.get(peer)]
        if others:
            (seen if len(others) >= MIN_USERS else seen_by_one)[peer].append(statistics.median_high(others))
    return seen, seen_by_one


def note_drawn(database: MonitorDatabase, epoch: int, peer: str, claimed: float, found: float) -> None:
    """Remember what a peer's loss is, drawn anew with the checkpoint of an epoch."""
    with database.writing():
        database.insert("drawn", epoch=epoch, peer=peer, claimed=claimed, found=found)
        query = "SELECT epoch FROM drawn ORDER BY epoch DESC LIMIT :most"
        database.change(f"DELETE FROM drawn WHERE epoch < (SELECT MIN(epoch) FROM ({query}))", most=DRAWN)


@dataclass(frozen=True)
class Distance:
    """How far a loss that a peer tells is from what was found, beside the others of the same checkpoint."""

    value: float
    limit: float
    """What still fits."""

    @property
    def is_far(self) -> bool:
        """Whether it does not fit."""
        return self.value > self.limit


def distances(database: MonitorDatabase) -> dict[str, list[Distance]]:
    """Return how the losses of each peer fit, by its id; nothing while there are few.

    A checkpoint is of an epoch near that of a batch, and from another peer, so all losses differ a little from those
    drawn anew. The median at the same checkpoint is taken off; limits follow from how far the others are from it, there
    and in all that are remembered.
    """
    rows, by_checkpoint = database.rows("SELECT * FROM drawn"), defaultdict(list)
    for row in rows:
        by_checkpoint[row["epoch"]].append((row["peer"], row["claimed"] - row["found"]))
    if len(rows) < MIN_DRAWN:
        return {}
    apart = {
        epoch: [(peer, abs(each - statistics.median(other for _, other in told))) for peer, each in told]
        for epoch, told in by_checkpoint.items()
        if len(told) >= MIN_TOGETHER
    }
    usual = statistics.median([each for told in apart.values() for _, each in told] or [0.0])
    found = defaultdict(list)
    for told in apart.values():
        limit = max(MIN_SPREAD, SPREADS * max(usual, statistics.median(each for _, each in told)))
        for peer, each in told:
            found[peer].append(Distance(each, limit))
    return found


def misfits(status: SwarmStatus, database: MonitorDatabase) -> Iterator[tuple[str, str]]:
    """Yield the ids of peers whose losses are not those of their batches, and what, in words."""
    found = distances(database)
    for peer in status.peers:
        own = found.get(peer.peer_id, [])
        far = [each for each in own if each.is_far]
        if len(far) >= max(MIN_MISFITS, len(own) // 2 + 1):
            off, usual = (statistics.median(getattr(each, what) for each in far) for what in ("value", "limit"))
            yield (
                peer.peer_id,
                (
                    f"{peer.name} ({peer.peer_id[-6:]}) tells losses that are {off:.3f} off on the rows that it names, "
                    f"{len(far)} of {len(own)} that were drawn anew; up to {usual:.3f} is usual."
                ),
            )
