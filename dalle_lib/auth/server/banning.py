"""The signed ban list of each run: what peers hold against access tokens that have not expired."""

import json
from datetime import UTC, datetime, timedelta

from dalle_lib.auth.server.database import Database
from dalle_lib.auth.server.runs import ServedRun

VALID = timedelta(hours=24)
"""How long a list counts; it is signed anew when half of that is over."""


def ban_list(run: ServedRun, database: Database, now: float) -> tuple[int, bytes]:
    """Return the serial and the bytes of a run's newest ban list, signed anew if bans, key or time ask for it."""
    banned = database.banned()
    names = json.dumps({kind: sorted(who) for kind, who in banned.items()})
    row = database.row("SELECT * FROM ban_lists WHERE run = :run", run=run.name)
    if row and row["names"] == names and row["key"] == run.key.public_key and now < row["renew_at"]:
        return row["serial"], row["data"]
    # By the clock, so that one who puts an old backup in place does not fall behind what peers know.
    serial = max(int(now), row["serial"] + 1 if row else 0)
    at = datetime.fromtimestamp(now, UTC)
    data = run.key.sign_bans(run.name, serial, banned["user"], banned["peer"], VALID, at).to_bytes()
    database.insert("ban_lists", run=run.name, serial=serial, names=names, renew_at=now + VALID.total_seconds() / 2,
                    key=run.key.public_key, data=data)  # fmt: skip
    return serial, data
