"""What a monitor remembers of a run, in one SQLite file: starts of peers, what each hour brought, epochs, alarms."""

from dalle_lib.sqlite import SQLite


class MonitorDatabase(SQLite):
    """The open file; it is made if it is missing, for its owner alone. Times are seconds since 1970."""

    VERSION, WHAT = 4, "the memory of a monitor"
    REMEDY = (
        "Put a copy of before in its place, or move it away, and a new one is made: then what was contributed before "
        "is forgotten, and nothing else."
    )
    SCHEMA = """
CREATE TABLE starts (
    peer TEXT, started REAL, user TEXT, name TEXT, team TEXT, hardware TEXT, kit TEXT, first_seen REAL, last_seen REAL,
    epoch INTEGER, samples REAL, compute_s REAL, counted REAL, samples_per_s REAL, loss REAL,
    origin REAL, origin_epoch INTEGER, run_epoch INTEGER, changed REAL,
    credited_samples REAL, credited_compute_s REAL, credited_counted REAL,
    weighed REAL, waiting_samples REAL, waiting_compute_s REAL,
    sent_bytes REAL NOT NULL DEFAULT 0, received_bytes REAL NOT NULL DEFAULT 0, held TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (peer, started)
) WITHOUT ROWID;
CREATE INDEX starts_seen ON starts (last_seen);
CREATE TABLE credits (
    hour INTEGER, user TEXT, peer TEXT, samples REAL, compute_s REAL, present_s REAL, counted REAL,
    PRIMARY KEY (hour, user, peer)
) WITHOUT ROWID;
CREATE TABLE claims (
    epoch INTEGER, peer TEXT, rounds INTEGER, counted REAL, excess_s REAL,
    samples REAL NOT NULL DEFAULT 0, sent_bytes REAL NOT NULL DEFAULT 0, received_bytes REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (epoch, peer)
) WITHOUT ROWID;
CREATE TABLE weights (
    epoch INTEGER, witness TEXT, place INTEGER, user TEXT, peer TEXT, weight REAL, PRIMARY KEY (epoch, witness, place)
) WITHOUT ROWID;
CREATE TABLE recomputed (
    epoch INTEGER, peer TEXT, claimed REAL, found REAL, PRIMARY KEY (epoch, peer)
) WITHOUT ROWID;
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, ended REAL, seconds REAL, peers INTEGER, samples_per_s REAL, loss REAL,
    counted_share REAL, up_mbps REAL, down_mbps REAL, spread REAL, farthest REAL
);
CREATE TABLE moments (minute INTEGER PRIMARY KEY, epoch INTEGER, peers INTEGER, users INTEGER);
CREATE TABLE alarms (
    kind TEXT, subject TEXT, since REAL, until REAL, told TEXT, PRIMARY KEY (kind, subject, since)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    epoch INTEGER PRIMARY KEY, made REAL, sha256 TEXT, bytes INTEGER, repository TEXT, revision TEXT,
    figures TEXT
);
"""
    UPGRADES = (
        "ALTER TABLE starts ADD COLUMN sent_bytes REAL NOT NULL DEFAULT 0;"
        "ALTER TABLE starts ADD COLUMN received_bytes REAL NOT NULL DEFAULT 0;"
        "ALTER TABLE claims ADD COLUMN samples REAL NOT NULL DEFAULT 0;"
        "ALTER TABLE claims ADD COLUMN sent_bytes REAL NOT NULL DEFAULT 0;"
        "ALTER TABLE claims ADD COLUMN received_bytes REAL NOT NULL DEFAULT 0;"
        "ALTER TABLE epochs ADD COLUMN counted_share REAL;"
        "ALTER TABLE epochs ADD COLUMN up_mbps REAL;"
        "ALTER TABLE epochs ADD COLUMN down_mbps REAL",
        "ALTER TABLE starts ADD COLUMN held TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE epochs ADD COLUMN spread REAL;ALTER TABLE epochs ADD COLUMN farthest REAL",
    )
