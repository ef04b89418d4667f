"""The memory of a monitor outlives a new version of the kit: an old file becomes a new one, and loses nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from statuses import peer_status

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.swarm.process.status import SwarmStatus

FIRST_VERSION = Path(__file__).parent / "data" / "monitor_1.sql"
NOW = 1_790_000_000.0


def columns(database) -> dict[str, list[tuple]]:
    tables = [row["name"] for row in database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: [tuple(row) for row in database.rows(f"PRAGMA table_info({table})")] for table in tables}


@pytest.fixture
def old(tmp_path):
    """A file as the first version of the kit's monitor made it, with a peer, its credit and an epoch."""
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as made:
        made.executescript(FIRST_VERSION.read_text())
        made.execute("INSERT INTO epochs VALUES (4, ?, 60.0, 3, 9.0, 2.5)", (NOW,))
        made.execute("INSERT INTO claims VALUES (4, 'P', 1, 50.0, 0.0)")
        made.execute("INSERT INTO credits VALUES (?, 'ada', 'P', 90.0, 55.0, 60.0, 50.0)", (int(NOW // 3600),))
        start = {"peer": "P", "started": NOW - 300, "user": "ada", "name": "ada", "team": "", "last_seen": NOW,
                 "first_seen": NOW - 300, "epoch": 4, "samples": 90.0, "compute_s": 55.0, "counted": 50.0,
                 "origin": NOW - 300, "origin_epoch": 0, "run_epoch": 4, "changed": NOW, "credited_samples": 90.0,
                 "credited_compute_s": 55.0, "credited_counted": 50.0, "weighed": NOW, "waiting_samples": 0.0,
                 "waiting_compute_s": 0.0}  # fmt: skip
        names = ", ".join(start)
        made.execute(f"INSERT INTO starts ({names}) VALUES (:{names.replace(', ', ', :')})", start)
        made.commit()
    return tmp_path / "old.sqlite"


def test_a_file_of_the_first_version_becomes_one_of_this_and_the_run_goes_on(old, tmp_path):
    with closing(MonitorDatabase(tmp_path / "new.sqlite")) as new:
        expected = columns(new)
    with closing(MonitorDatabase(old)) as upgraded:
        assert columns(upgraded) == expected
        for epochs in 1, 2:
            peer = peer_status(
                "P", "ada", epoch=4 + epochs, started_at=NOW - 300, samples=90 + 100 * epochs,
                compute_s=55 + 50.0 * epochs, counted=50 + 100.0 * epochs, sent_bytes=600_000 * epochs,
            )  # fmt: skip
            look = SwarmStatus(time=NOW + 60 * epochs, epoch=4 + epochs, total_epochs=99, samples_in_epoch=None,
                               target_batch_size=100, peers=[peer])  # fmt: skip
            Observer(upgraded).note(look)
        credit = upgraded.row("SELECT SUM(samples) AS samples, SUM(counted) AS counted FROM credits")
        assert (credit["samples"], credit["counted"]) == (290, 250), "what was credited before is kept"
        last = upgraded.row("SELECT * FROM epochs ORDER BY epoch DESC LIMIT 1")
        assert last["epoch"] == 6
        assert last["up_mbps"] == pytest.approx(8 * 0.6 / 2 / 60), "nothing is known of the epoch before the upgrade"
    with closing(MonitorDatabase(old)) as again:
        assert columns(again) == expected, "it is upgraded once"


def test_a_file_of_a_later_version_is_left_as_it_is(old):
    with closing(sqlite3.connect(old)) as later:
        later.execute("PRAGMA user_version = 9")
    before = old.read_bytes()
    with pytest.raises(ValueError, match="but it is 9: update dalle-lib"):
        MonitorDatabase(old)
    assert old.read_bytes()[100:] == before[100:]
