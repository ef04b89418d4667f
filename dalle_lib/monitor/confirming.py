"""What a monitor confirms of the receipts of peers, and the page by which anybody checks one."""

import json
from bisect import bisect_left, bisect_right
from itertools import accumulate
from pathlib import Path

from dalle_lib.auth.keys import PeerKey
from dalle_lib.files import replace_file
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.run import RunCard
from dalle_lib.run.files import EMBEDDED
from dalle_lib.run.newest import CONFIRMED
from dalle_lib.swarm.process.receipt import Confirmation, write_confirmations
from dalle_lib.swarm.process.settings import ANONYMOUS

CHECKER = "receipt.html"
"""The page, among the package's files, in a monitor's folder and in the repository of checkpoints."""
MAX_CONFIRMED = 500
"""Peers whose receipts are confirmed, those that gave most: 700 bytes each, and 2 ms to sign."""
_CARD = '<script id="card" type="application/json">null</script>'


def confirm(folder: Path, card: RunCard, database: MonitorDatabase, key: PeerKey) -> None:
    """Write into a monitor's folder what it confirms, and the page, in which the run and its monitors are filled in."""
    write_confirmations(folder / CONFIRMED, confirmations(card, database), key)
    page = (EMBEDDED / CHECKER).read_text(encoding="utf-8")
    known = json.dumps({"name": card.name, "monitors": card.monitors}).replace("<", "\\u003c")
    with replace_file(folder / CHECKER) as unfinished:
        unfinished.write_text(page.replace(_CARD, _CARD.replace("null", known)), encoding="utf-8")


def confirmations(card: RunCard, database: MonitorDatabase) -> list[Confirmation]:
    """Return what each peer was credited with whose gradients have counted, unsigned; who is anonymous has none."""
    rows = database.rows(
        "SELECT peer, SUM(samples) AS samples, SUM(compute_s) AS compute_s, SUM(counted) AS counted, "
        "MIN(hour) AS first, MAX(hour) AS last FROM credits GROUP BY peer HAVING SUM(counted) > 0 AND peer NOT LIKE "
        ":anonymous ORDER BY counted DESC LIMIT :most",
        anonymous=f"{ANONYMOUS}-%", most=MAX_CONFIRMED,
    )  # fmt: skip
    of_all = database.rows("SELECT hour, SUM(counted) AS counted FROM credits GROUP BY hour ORDER BY hour")
    hours, sums = [row["hour"] for row in of_all], [0.0, *accumulate(row["counted"] for row in of_all)]
    query = (
        "SELECT peer, user, MAX(last_seen) AS seen, MIN(origin_epoch) AS first, MAX(run_epoch) AS last FROM starts "
        "GROUP BY peer"
    )
    starts = {row["peer"]: row for row in database.rows(query)}
    found = []
    for row in rows:
        start, meanwhile = starts[row["peer"]], sums[bisect_right(hours, row["last"])]
        meanwhile -= sums[bisect_left(hours, row["first"])]
        told = Confirmation(
            run=card.name, fingerprint=card.fingerprint, peer_id=row["peer"], user=start["user"],
            first_epoch=start["first"], last_epoch=start["last"], share=round(row["counted"] / meanwhile, 6),
            samples=round(row["samples"]), compute_s=round(row["compute_s"], 1), written=round(start["seen"]),
        )  # fmt: skip
        found.append(told)
    return found
