"""Who trains a run now, as far as somebody who has not joined can ask: the hash table, or what its monitor told."""

import json
import time
from dataclasses import dataclass

from dalle_lib.amounts import duration
from dalle_lib.files import small_bytes
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.newest import STATUS, file_of_monitor
from dalle_lib.swarm.peer.dry_run import Findings
from dalle_lib.swarm.process.status import MAX_SHOWN

OLD_S = 6 * 3600.0
"""Seconds after which what a monitor told says no more who is there; it tells four times an hour at most."""
AWAY = ("gone", "paused")
"""States of a monitor's peers that compute nothing now."""


@dataclass(frozen=True, kw_only=True)
class Company:
    """Who trains a run besides this machine."""

    speeds: tuple[float, ...] | None = None
    """Samples a second of each peer that computes now, by its own account; None if nobody could be asked."""
    source: str = "nobody could be asked"
    """Who says so, in words."""
    epoch: int = 0
    """The epoch in which the run is, as far as it is known."""
    why_unknown: str = ""
    """Why nobody could be asked."""


def company_now(card: RunCard, found: Findings) -> Company:
    """Return who trains a run now: as its hash table told the doctor, or else as its monitor told the Hub."""
    if found.others is not None:
        return Company(speeds=tuple(found.others), source="as they say themselves", epoch=found.epoch)
    nobody = Company(why_unknown=found.look if card.members is None else "peers of this run tell its members alone")
    if card.checkpoints is None:
        return nobody
    try:
        told = json.loads(small_bytes(file_of_monitor(card, STATUS), MAX_CARD_BYTES))
        age = time.time() - told["written"]
        speeds = [float(peer["samples_per_s"] or 0) for peer in told["peers"] if peer["state"] not in AWAY]
        epoch = int(told["epoch"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return nobody  # the monitor has told nothing, or nonsense
    if not 0 <= age <= OLD_S or not all(0 <= speed <= 1e6 for speed in speeds) or not 0 <= epoch <= 10**9:
        return nobody
    source = f"as the run's monitor told {duration(age)} ago"
    return Company(speeds=tuple(speeds[:MAX_SHOWN]), source=source, epoch=epoch)
