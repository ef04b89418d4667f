"""Bans, and the signed list of them: what peers hold against access tokens that have not expired."""

import json
import re
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dalle_lib.auth.server.database import Database, opened
from dalle_lib.auth.server.runs import ServedRun

VALID = timedelta(hours=24)
"""How long a list counts; it is signed anew when half of that is over."""


PEER_ID = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")


def ban(folder: str | Path, name: str, reason: str = "") -> str:
    """Ban a user of the Hub, or one peer by its id, from all runs of the server in a folder; return which it is."""
    kind, name = kind_of(name)
    with closing(opened(folder)) as database:
        database.ban(kind, name, reason, time.time())
    return f"{kind} {name}"


def unban(folder: str | Path, name: str) -> str:
    """Lift a ban, and return whose. Raises ValueError if there is none."""
    kind, name = kind_of(name)
    with closing(opened(folder)) as database:
        if not database.unban(kind, name):
            raise ValueError(f"expected a banned user or peer, but {name} is not banned.")
    return f"{kind} {name}"


def kind_of(name: str) -> tuple[str, str]:
    """Return whether a name is a peer's id or a user's, and the name as bans hold it."""
    return ("peer", name) if PEER_ID.fullmatch(name) else ("user", name.casefold())


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
