"""What a monitor tells everybody, of a whole run in seconds: small, complete, and right."""

import json
import random
from dataclasses import replace

import pytest
from statuses import peer_status

from dalle_lib.monitor.alarms import STALL_S, note, problems
from dalle_lib.monitor.anonymous import anonymised
from dalle_lib.monitor.checkpoints import kept_by_age
from dalle_lib.monitor.contributions import DAY_S, teams
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.page import write_page
from dalle_lib.monitor.published import HISTORY, history_of, publish, status_of
from dalle_lib.run.newest import STATUS, TEAM_COLUMNS, USER_COLUMNS
from dalle_lib.swarm.process.status import SwarmStatus

BEGAN, LENGTH_S = 1_790_000_000.0, 4 * 3600


@pytest.fixture
def database(tmp_path):
    opened = MonitorDatabase(tmp_path / "monitor.sqlite")
    yield opened
    opened.close()


def swarm_at(second, epoch, peers):
    return SwarmStatus(
        time=BEGAN + second, epoch=epoch, total_epochs=10_000, samples_in_epoch=None, target_batch_size=4096,
        peers=peers,
    )  # fmt: skip


def peers_at(second, epochs, **told):
    return [
        peer_status(
            f"Qm{i:044}",
            f"user-{i}",
            epoch=epoch,
            started_at=BEGAN,
            compute_s=0.9 * second,
            counted=float(second),
            loss=3.0,
            **told,
        )
        for i, epoch in enumerate(epochs)
    ]


def test_forty_peers_that_come_and_go_take_little_room_and_add_up(mini, database, tmp_path):
    random.seed(0)
    for second in range(120, LENGTH_S, 120):
        epoch = second // 300
        there = [i for i in range(40) if (second // 600 + i) % 5]  # each is away for ten minutes of fifty
        peers = peers_at(second, [epoch - (random.random() < 0.1) for _ in range(40)], samples=13 * second)
        Observer(database).note(swarm_at(second, epoch, [peers[i] for i in there]))
    now = BEGAN + LENGTH_S
    status, history = status_of(mini, database, now), history_of(mini, database, tmp_path)
    assert publish(tmp_path, STATUS, status) < 200_000
    assert publish(tmp_path, HISTORY, history) < 100_000
    assert json.loads((tmp_path / STATUS).read_text()) == json.loads(json.dumps(status))
    assert (status["epoch"], status["epoch_s"], status["totals"]["users"]) == (47, 300.0, 40)
    users = [dict(zip(USER_COLUMNS, row, strict=True)) for row in status["users"]]
    assert sum(user["share"] for user in users) == pytest.approx(1.0, rel=1e-3)
    assert all(user["compute_s"] == pytest.approx(0.9 * LENGTH_S, rel=0.1) for user in users)
    assert len(history["epochs"]["epoch"]) == len(history["epochs"]["loss"]) == 47
    assert max(history["hours"]["peers"]) == 32


def test_a_history_of_many_epochs_is_thinned_and_keeps_its_end(mini, database, tmp_path):
    with database.writing():
        for epoch in range(1, 31_251):
            database.insert("epochs", epoch=epoch, ended=BEGAN + 200 * epoch, seconds=200.0, peers=30, loss=9 / epoch)
    found = history_of(mini, database, tmp_path)["epochs"]
    assert len(found["epoch"]) <= 2000
    assert found["epoch"][-1] == 31_250
    assert found["ended"][-1] == BEGAN + 200 * 31_250


def test_peers_are_shown_by_state_with_the_reason(mini, database):
    observer = Observer(database)
    observer.note(swarm_at(0, 9, peers_at(0, [9, 9, 9, 9])))
    now = swarm_at(600, 9, peers_at(600, [9, 9, 2]))
    observer.note(now)
    note(list(problems(now, database)), database, now.time)
    shown = {peer["name"]: peer for peer in status_of(mini, database, now.time)["peers"]}
    assert [shown[f"user-{i}"]["state"] for i in range(4)] == ["training", "training", "lagging", "gone"]
    assert "7 epochs behind the others" in shown["user-2"]["why"]
    assert shown["user-3"]["why"] == "last seen 10 minutes ago"


def test_problems_begin_and_end_once(database):
    observer = Observer(database)

    def told_at(second, epochs):
        look = swarm_at(second, 0, peers_at(second, epochs))
        observer.note(look)
        return [problem.kind for problem in note(list(problems(look, database)), database, look.time)]

    for second in range(-660, -60, 60):
        assert told_at(second, []) == [], "the monitor has just been started"
    assert told_at(-60, []) == ["empty"]
    assert told_at(5, []) == []
    assert told_at(10, [1, 1, 1]) == []
    assert told_at(20, [2, 2, 9]) == ["apart"]
    assert told_at(30, [3, 3, 3, 9, 10]) == ["split"]
    assert told_at(40, [4, 4, 4]) == []
    assert told_at(41 + STALL_S, [4, 4, 4]) == ["stalled"]
    assert told_at(50 + STALL_S, [5, 5, 5]) == []
    assert told_at(7200 + STALL_S, []) == [], "nobody has looked for two hours"
    rows = database.rows("SELECT kind, since, until FROM alarms ORDER BY since")
    assert [(row["kind"], row["since"] - BEGAN, row["until"] - BEGAN) for row in rows] == [
        ("empty", -60, 10), ("apart", 20, 30), ("split", 30, 40), ("stalled", 41 + STALL_S, 50 + STALL_S)
    ]  # fmt: skip


def test_checkpoints_are_kept_by_their_age():
    now = BEGAN + 60 * DAY_S
    made = {epoch: BEGAN + epoch * DAY_S / 10 for epoch in range(1, 601)}
    kept = sorted(kept_by_age(made))
    ages = [(now - made[epoch]) / DAY_S for epoch in kept]
    assert sum(age <= 1 for age in ages) == 11, "all of the last day"
    assert 6 <= sum(1 < age <= 7 for age in ages) <= 7, "one a day of the last week"
    assert 7 <= sum(age > 7 for age in ages) <= 9, "one a week of the others"
    assert kept[-1] == 600
    assert kept_by_age({}) == set()


def test_a_clock_that_is_ahead_for_a_while_costs_no_more_checkpoints_than_a_day():
    made = {epoch: BEGAN + epoch * DAY_S / 10 for epoch in range(1, 61)}
    ahead = {61: BEGAN + 371 * DAY_S, 62: BEGAN + 371.1 * DAY_S}
    assert len(kept_by_age(made)) == 11 + 5
    assert len(kept_by_age(made | ahead)) == 2 + 7
    assert kept_by_age(made | ahead) < kept_by_age(made | {**ahead, 63: BEGAN + 6.3 * DAY_S}), "it is right again"


def test_teams_have_a_rank_and_count_their_anonymous_members_without_a_name(mini, database, tmp_path):
    told = [("a", "ada", "reds", True), ("b", "bob", " reds ", False), ("c", "cleo", "blues", False),
            ("d", "dan", "", False), ("e", "eve", "/?*", False)]  # fmt: skip
    for second in 0, 700, 1400:
        peers = [
            peer_status(
                peer,
                user,
                team=team,
                anonymous=hidden,
                started_at=BEGAN,
                compute_s=second - 200 * (peer == "c"),
                counted=second / 10,
            )
            for peer, user, team, hidden in told
            if peer != "e" or second < 700
        ]
        look = replace(swarm_at(second, 9, peers), users={peer: user for peer, user, *_ in told})
        Observer(database).note(anonymised(look, b"k" * 32))
    status = status_of(mini, database, BEGAN + 1400)
    rows = [dict(zip(TEAM_COLUMNS, row, strict=True)) for row in status["teams"]]
    assert [(team["rank"], team["team"], team["members"]) for team in rows] == [(1, "reds", 2), (2, "blues", 1)]
    assert [team["compute_s"] for team in rows] == [2800, 1200]
    assert status["totals"]["teams"] == 2
    assert "ada" not in json.dumps(status["teams"])
    write_page(tmp_path, mini, status, history_of(mini, database, tmp_path))
    assert "| `reds` | 2 | 0.8 |" in (tmp_path / "README.md").read_text()


def test_four_times_as_many_peers_in_teams_take_about_four_times_as_long(database):
    def steps(count):
        """Return the thousands of steps in which SQLite answers, with so many peers and hours."""
        with database.writing():
            for i in range(count):
                of_peer = {"peer": f"Qm{i}", "user": f"user-{i % 9}"}
                database.insert("starts", **of_peer, started=BEGAN, team=f"team-{i % 3}", last_seen=BEGAN)
                database.insert("credits", **of_peer, hour=i, samples=9.0, compute_s=3600.0, counted=9.0)
        taken = []
        database._sqlite.set_progress_handler(lambda: taken.append(1), 1000)
        assert len(teams(database)) == 3
        database._sqlite.set_progress_handler(None, 0)
        return len(taken)

    few, many = steps(200), steps(800)
    assert few * 2 < many < few * 6
