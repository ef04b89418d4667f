CREATE TABLE starts (
    peer TEXT, started REAL, user TEXT, name TEXT, team TEXT, hardware TEXT, kit TEXT, first_seen REAL, last_seen REAL,
    epoch INTEGER, samples REAL, compute_s REAL, counted REAL, samples_per_s REAL, loss REAL,
    origin REAL, origin_epoch INTEGER, run_epoch INTEGER, changed REAL,
    credited_samples REAL, credited_compute_s REAL, credited_counted REAL,
    weighed REAL, waiting_samples REAL, waiting_compute_s REAL,
    PRIMARY KEY (peer, started)
) WITHOUT ROWID;
CREATE INDEX starts_seen ON starts (last_seen);
CREATE TABLE credits (
    hour INTEGER, user TEXT, peer TEXT, samples REAL, compute_s REAL, present_s REAL, counted REAL,
    PRIMARY KEY (hour, user, peer)
) WITHOUT ROWID;
CREATE TABLE claims (
    epoch INTEGER, peer TEXT, rounds INTEGER, counted REAL, excess_s REAL, PRIMARY KEY (epoch, peer)
) WITHOUT ROWID;
CREATE TABLE weights (
    epoch INTEGER, witness TEXT, place INTEGER, user TEXT, peer TEXT, weight REAL, PRIMARY KEY (epoch, witness, place)
) WITHOUT ROWID;
CREATE TABLE recomputed (
    epoch INTEGER, peer TEXT, claimed REAL, found REAL, PRIMARY KEY (epoch, peer)
) WITHOUT ROWID;
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, ended REAL, seconds REAL, peers INTEGER, samples_per_s REAL, loss REAL
);
CREATE TABLE moments (minute INTEGER PRIMARY KEY, epoch INTEGER, peers INTEGER, users INTEGER);
CREATE TABLE alarms (
    kind TEXT, subject TEXT, since REAL, until REAL, told TEXT, PRIMARY KEY (kind, subject, since)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    epoch INTEGER PRIMARY KEY, made REAL, sha256 TEXT, bytes INTEGER, repository TEXT, revision TEXT,
    figures TEXT
);
PRAGMA user_version = 1;
