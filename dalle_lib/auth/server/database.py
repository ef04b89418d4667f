"""What an authority remembers: users, peers, bans, refusals and device flows, in one SQLite file.

Several processes may use it at once: the server, and the commands of its organiser.
"""

import hashlib
from pathlib import Path

from dalle_lib.auth.server.settings import Folder
from dalle_lib.sqlite import SQLite

MAX_SIGNATURES, MAX_DEVICES, MAX_PEERS = 200_000, 20_000, 200_000
"""Rows that are kept. Beyond them new device flows and signatures are refused, and the oldest peers are forgotten."""
FORGET_S = 30 * 86_400.0
"""Seconds after its last access token when a peer is forgotten."""
SCHEMA = """
CREATE TABLE users (
    run TEXT, user TEXT, way TEXT, first_seen REAL, proved REAL, PRIMARY KEY (run, user)
) WITHOUT ROWID;
CREATE TABLE peers (
    run TEXT, peer TEXT, user TEXT, name TEXT, platform TEXT, first_seen REAL, renewed REAL, expires REAL,
    proof_until REAL, PRIMARY KEY (run, peer)
) WITHOUT ROWID;
CREATE INDEX peers_of_user ON peers (run, user);
CREATE TABLE bans (kind TEXT, name TEXT, since REAL, reason TEXT, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE ban_lists (run TEXT PRIMARY KEY, serial INTEGER, names TEXT, renew_at REAL, key TEXT, data BLOB);
CREATE TABLE refusals (run TEXT, code TEXT, count INTEGER, last REAL, PRIMARY KEY (run, code)) WITHOUT ROWID;
CREATE TABLE devices (
    handle TEXT PRIMARY KEY, run TEXT, public_key BLOB, peer TEXT, name TEXT, platform TEXT, address TEXT, asked REAL,
    expires REAL, interval_s INTEGER, next_poll REAL, state TEXT, sealed BLOB
) WITHOUT ROWID;
CREATE TABLE signatures (digest TEXT PRIMARY KEY, until REAL) WITHOUT ROWID;
CREATE INDEX signatures_until ON signatures (until);
CREATE TABLE heartbeat (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL);
"""


class Database(SQLite):
    """The open file; it is made if it is missing, for its owner alone."""

    SCHEMA, VERSION, WHAT = SCHEMA, 1, "the data base of an authority"
    REMEDY = (
        "Put a backup in its place, or move it away, and a new one is made: then every peer proves its user again, and "
        "bans are lost."
    )

    def remember_signature(self, digest: str, until: float) -> bool:
        """Return whether a signature is new, and remember it until that time."""
        query = "INSERT OR IGNORE INTO signatures (digest, until) VALUES (:digest, :until)"
        return self.change(query, digest=digest, until=until) == 1

    def count_refusal(self, run: str, code: str, now: float) -> None:
        """Count a refusal by its cause."""
        self.change(
            "INSERT INTO refusals VALUES (:run, :code, 1, :now) "
            "ON CONFLICT DO UPDATE SET count = count + 1, last = :now",
            run=run, code=code, now=now,
        )  # fmt: skip

    def banned(self) -> dict[str, set[str]]:
        """Return the names of banned users, in lower case, and the ids of banned peers, under "user" and "peer"."""
        names: dict[str, set[str]] = {"user": set(), "peer": set()}
        for row in self.rows("SELECT kind, name FROM bans"):
            names[row["kind"]].add(row["name"])
        return names

    def ban(self, kind: str, name: str, reason: str, now: float) -> None:
        """Ban a user or a peer; a ban that is there keeps its time and gets the new reason."""
        self.change(
            "INSERT INTO bans VALUES (:kind, :name, :now, :reason) ON CONFLICT DO UPDATE SET reason = :reason",
            kind=kind, name=name, now=now, reason=reason,
        )  # fmt: skip

    def unban(self, kind: str, name: str) -> bool:
        """Lift a ban, and return whether there was one."""
        return self.change("DELETE FROM bans WHERE kind = :kind AND name = :name", kind=kind, name=name) == 1

    def beat(self, now: float) -> None:
        """Write something. Raises sqlite3.Error if that cannot be."""
        self.insert("heartbeat", one=1, at=now)

    def forget(self, now: float) -> None:
        """Remove what counts no more, and the oldest of what is too much."""
        with self.writing():
            self.change("DELETE FROM signatures WHERE until < :now", now=now)
            self.change(
                "UPDATE devices SET sealed = NULL, state = 'expired' WHERE expires < :now AND state = 'pending'",
                now=now,
            )
            self.change("DELETE FROM devices WHERE expires < :now - 600", now=now)
            self.change("DELETE FROM peers WHERE expires < :now - :keep", now=now, keep=FORGET_S)
            over = self.count("SELECT COUNT(*) FROM peers") - MAX_PEERS
            if over > 0:
                oldest = "SELECT run, peer FROM peers ORDER BY expires LIMIT :over"
                self.change(f"DELETE FROM peers WHERE (run, peer) IN ({oldest})", over=over)
            self.change(
                "DELETE FROM users WHERE proved < :now - :keep AND NOT EXISTS "
                "(SELECT 1 FROM peers WHERE peers.run = users.run AND peers.user = users.user)",
                now=now, keep=FORGET_S,
            )  # fmt: skip


def hashed(handle: str) -> str:
    """Return a device handle's name in the data base, from which nobody can make the handle."""
    return hashlib.sha256(b"handle " + handle.encode()).hexdigest()


def opened(folder: str | Path) -> Database:
    """Return the data base of a server. Raises FileNotFoundError if the folder is none."""
    place = Folder(Path(folder))
    place.settings()
    return Database(place.database)
