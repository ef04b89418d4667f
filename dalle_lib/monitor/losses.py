"""Whose losses do not fit: what peers tell of their batches beside what a checkpoint's model finds on them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.status import SwarmStatus

REMEMBERED, MIN_RECOMPUTED, MIN_TOGETHER = 60, 8, 3
"""Losses, recomputed last, by which peers are judged, the fewest of them, and the fewest for one checkpoint: where two
differ, nobody can tell which is wrong."""
SPREADS, MIN_SPREAD = 8.0, 0.01
"""Multiple of the usual distance from the others that still fits, and the least distance. Losses computed in bf16 were
up to 0.006 off those in float32, which are recomputed (embedded models, batches of 1 to 16 rows)."""
MIN_MISFITS = 4
"""Losses of one peer, more than half of its own among those, that do not fit before it is flagged: those of an honest
one do not fit, either, while its parameters are apart from the checkpoint's because rounds were split."""


def note_recomputed(database: MonitorDatabase, epoch: int, peer: str, claimed: float, found: float) -> None:
    """Remember what a peer's loss is, recomputed with the checkpoint of an epoch, if that is finite."""
    if not math.isfinite(found):  # the model is broken, which is told elsewhere; SQLite would hold no number
        return
    with database.writing():
        database.insert("recomputed", epoch=epoch, peer=peer, claimed=claimed, found=found)
        query = "SELECT epoch FROM recomputed ORDER BY epoch DESC LIMIT :most"
        database.change(f"DELETE FROM recomputed WHERE epoch < (SELECT MIN(epoch) FROM ({query}))", most=REMEMBERED)


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
    recomputed ones. The median at the same checkpoint is taken off; limits follow from how far the others are from it,
    there and in all that are remembered.
    """
    rows, by_checkpoint = database.rows("SELECT * FROM recomputed"), defaultdict(list)
    for row in rows:
        by_checkpoint[row["epoch"]].append((row["peer"], row["claimed"] - row["found"]))
    if len(rows) < MIN_RECOMPUTED:
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
                    f"{len(far)} of {len(own)} that were recomputed; up to {usual:.3f} is usual."
                ),
            )
