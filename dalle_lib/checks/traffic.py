"""Checks of the limits that a volunteer sets to a peer's traffic: do they fit the run, and what is used of them."""

import time
from collections.abc import Iterator

from dalle_lib.checks.preflight import Check, require
from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.swarm.process.month import Months, day_of, in_gb, next_month
from dalle_lib.swarm.process.settings import PeerSettings


def traffic_checks(settings: PeerSettings, card: RunCard | None) -> Iterator[Check]:
    """Yield whether a peer may send fast enough for a run, and what is used of its month, where these have a limit."""
    if settings.max_upload_mbps is not None and card is not None:
        yield _fast_enough(settings.max_upload_mbps, card)
    if settings.monthly_gb is not None:
        yield _this_month(settings.monthly_gb)


def _fast_enough(limit_mbps: float, card: RunCard) -> Check:
    from dalle_lib.swarm.peer.traffic import needed_mbps  # loads hivemind

    needed = needed_mbps(card)
    remedy = "allow more, or leave it out: this run leaves out peers that take longer"
    what, here = "upload limit", f"{limit_mbps:g} Mbit/s (--max-upload-mbps)"
    return require(what, f"at least {needed:.2g} Mbit/s", here, limit_mbps >= needed, remedy)


def _this_month(limit_gb: float) -> Check:
    what, needed, now = "month's traffic", f"below {limit_gb:g} GB", time.time()
    try:
        used = Months().used(now)
    except (BrokenFile, OSError) as error:
        return Check(what, needed, "not known", False, in_one_line(error))
    here = f"{in_gb(used.sent + used.received)} of {limit_gb:g} GB, by all your peers on this machine"
    rests = (
        f"your peers rest until {day_of(next_month(now))}; to go on now, stop them and join with a higher --monthly-gb"
    )
    return Check(what, needed, here, True, rests if used.gigabytes >= limit_gb else "")
