"""How averaging goes: which part of the gradients reaches an average, and what that sends and receives.

Peers tell both of themselves and nothing checks it, so no peer counts for much more than the median one does.
"""

import statistics
from collections import defaultdict

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.swarm.process.status import SwarmStatus

LAST = 5
"""Epochs over which both are told: an average comes after the samples that it holds, at times in the next epoch."""
MAX_TIMES = 4.0
"""Samples of one peer, in multiples of the median peer's, beyond which they count no more."""


def counted_share(database: MonitorDatabase, epoch: int) -> float | None:
    """Return which part of the samples of the epochs before `epoch` reached an average with others, from 0 to 1.

    None where nothing was computed, and until LAST epochs were seen. A peer that is flagged for its claims is left out.
    """
    first = database.row("SELECT MIN(epoch) AS epoch FROM claims")["epoch"]
    if first is None or first > epoch - LAST:
        return None
    rows = database.rows(
        "SELECT SUM(samples) AS samples, SUM(counted) AS counted FROM claims WHERE epoch >= :since AND "
        "epoch < :epoch AND peer NOT IN "
        "(SELECT subject FROM alarms WHERE kind = 'claims' AND until IS NULL) GROUP BY peer HAVING SUM(samples) > 0",
        since=epoch - LAST, epoch=epoch,
    )  # fmt: skip
    if not rows:
        return None
    most = MAX_TIMES * statistics.median(row["samples"] for row in rows)
    weights = [min(row["samples"], most) for row in rows]
    shares = [min(1.0, row["counted"] / row["samples"]) for row in rows]
    return sum(weight * share for weight, share in zip(weights, shares, strict=True)) / sum(weights)


def traffic_mbps(database: MonitorDatabase, status: SwarmStatus, epoch: int) -> tuple[float, float] | tuple[None, None]:
    """Return the Mbit/s that a peer of the median user sends and receives by averaging before `epoch`.

    A user's peers count as their mean. Two None where nobody has seen the epochs before.
    """
    began = database.row(
        "SELECT epoch, ended FROM epochs WHERE epoch >= :since AND epoch < :epoch ORDER BY epoch LIMIT 1",
        since=epoch - LAST, epoch=epoch,
    )  # fmt: skip
    rows = database.rows(
        "SELECT peer, SUM(rounds) AS rounds, SUM(sent_bytes) AS sent, SUM(received_bytes) AS received FROM claims "
        "WHERE epoch >= :since AND epoch < :epoch GROUP BY peer HAVING SUM(rounds) > 0",
        since=epoch - LAST, epoch=epoch,
    )  # fmt: skip
    users, by_user = {peer.peer_id: status.user_of(peer) for peer in status.peers}, defaultdict(list)
    for row in rows:
        by_user[users.get(row["peer"], row["peer"])].append(row)
    if began is None or not by_user:
        return None, None
    epoch_s = max(1.0, status.time - began["ended"]) / (epoch - began["epoch"])
    up, down = (
        statistics.median(sum(row[way] for row in own) / sum(row["rounds"] for row in own) for own in by_user.values())
        for way in ("sent", "received")
    )
    return 8e-6 * up / epoch_s, 8e-6 * down / epoch_s
