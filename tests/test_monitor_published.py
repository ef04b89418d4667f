"""What a monitor tells everybody, of a whole run in seconds: small, complete, and right."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from statuses import peer_status

from dalle_lib.monitor.alarms import STALL_S, note, problems
from dalle_lib.monitor.anonymous import anonymised
from dalle_lib.monitor.checkpoints import kept_by_age
from dalle_lib.monitor.contributions import DAY_S, teams
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import MAX_SHOWN, drawings, spread
from dalle_lib.monitor.evaluating import Figures, as_json
from dalle_lib.monitor.judging import Judged
from dalle_lib.monitor.observing import Observer
from dalle_lib.monitor.page import write_page
from dalle_lib.monitor.published import HISTORY, MAX_EVALUATIONS, MAX_POINTS, history_of, publish, status_of
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
    for table in history.values():
        assert len({len(column) for column in table.values()}) == 1
    assert len(history["epochs"]["epoch"]) == 47
    assert history["epochs"]["samples"][-1] == 47 * mini.averaging.target_batch_size
    assert max(history["hours"]["peers"]) == 32


def test_a_history_of_many_epochs_is_thinned_and_keeps_its_end(mini, database, tmp_path):
    with database.writing():
        for epoch in range(1, 31_251):
            database.insert("epochs", epoch=epoch, ended=BEGAN + 200 * epoch, seconds=200.0, peers=30, loss=9 / epoch)
    found = history_of(mini, database, tmp_path)["epochs"]
    assert len(found["epoch"]) <= 2000
    assert found["epoch"][-1] == 31_250
    assert found["ended"][-1] == BEGAN + 200 * 31_250


@pytest.mark.parametrize(("hours", "step_min"), [(2, 1), (24 * 5, 5), (24 * 75, 60), (24 * 400, 1440)])
def test_who_was_there_is_told_by_the_minute_in_a_young_run_and_by_the_hour_in_a_long_one(
    mini, database, tmp_path, hours, step_min
):
    first = int(BEGAN // 60)
    with database.writing():
        for minute in range(first, first + 60 * hours, max(1, step_min // 3)):
            database.insert("moments", minute=minute, epoch=1, peers=3 + minute % 2, users=2)
        database.insert("epochs", epoch=1, ended=60.0 * (first + 30), up_mbps=1.25, down_mbps=2.5)
    found = history_of(mini, database, tmp_path)["hours"]
    assert len(found["hour"]) <= MAX_POINTS
    assert found["hour"][1] - found["hour"][0] == pytest.approx(step_min / 60, abs=0.002)
    assert found["hour"][0] == pytest.approx(first / 60, abs=step_min / 60 + 0.001)
    assert max(found["most"]) == 4
    (at,) = [place for place, up in enumerate(found["up_mbps"]) if up is not None]
    assert (found["up_mbps"][at], found["down_mbps"][at]) == (1.25, 2.5)
    assert -0.001 < (first + 30) / 60 - found["hour"][at] < step_min / 60 + 0.001


def test_evaluations_have_interval_floor_and_ceiling_and_broken_checkpoints_none(mini, database, tmp_path):
    judged = Judged(captions=64, exact=0.25, rank=0.4, rank_chance=0.04, rank_ceiling=0.9, nearest=0.7,
                    nearest_held_out=0.6)  # fmt: skip
    with database.writing():
        for epoch in range(1, 1202):
            figures = Figures(held_out_loss=3.0, half_width=0.125, rows=9, drawn=judged if epoch % 2 else None)
            told = "{}" if epoch == 700 else None if epoch == 1201 else as_json(figures)
            database.insert("checkpoints", epoch=epoch, made=BEGAN + epoch, figures=told)
    found = history_of(mini, database, tmp_path)["evaluations"]
    assert len(found["epoch"]) <= MAX_EVALUATIONS
    assert 700 not in found["epoch"]
    last = {name: column[-1] for name, column in found.items()}
    assert last.pop("epoch") == 1200
    assert last["made"] == BEGAN + 1200
    assert (last["loss"], last["low"], last["high"], last["rank"]) == (3.0, 2.875, 3.125, None)
    before = {name: column[-2] for name, column in found.items()}
    assert before["epoch"] == 1197
    shown = ("rank", "rank_chance", "rank_ceiling", "exact", "nearest", "nearest_held_out")
    assert [before[name] for name in shown] == [0.4, 0.04, 0.9, 0.25, 0.7, 0.6]


@pytest.mark.parametrize("count", [1, 2, 59, 60, 61, 119, 120, 500, 3600])
def test_pictures_are_spread_evenly_with_the_first_and_the_newest(count):
    shown = spread(list(range(count)), MAX_SHOWN)
    assert (shown[0], shown[-1]) == (0, count - 1)
    assert len(shown) <= MAX_SHOWN
    assert len(shown) >= min(count, MAX_SHOWN // 2)
    gaps = {after - before for before, after in pairwise(shown[:-1])}
    assert len(gaps) <= 1


def test_the_pictures_that_are_shown_are_there(mini, database, tmp_path):
    for folder in "pictures", "best":
        (tmp_path / folder).mkdir()
    for epoch in range(0, 700, 7):
        (tmp_path / "pictures" / f"epoch-{epoch:07}.webp").write_bytes(b"-")
        if epoch % 14 == 0:
            (tmp_path / "best" / f"epoch-{epoch:07}.webp").write_bytes(b"-")
    (tmp_path / "pictures" / "other.webp").write_bytes(b"-")
    found = history_of(mini, database, tmp_path)["pictures"]
    assert (found["epoch"][0], found["epoch"][-1]) == (0, 693)
    assert found["best"][-1] is None
    assert all((tmp_path / name).is_file() for name in found["first"] + found["best"] if name is not None)
    assert found["first"][0] == "pictures/epoch-0000000.webp"
    assert list(drawings(tmp_path)) == found["epoch"]


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


def test_a_paused_peer_is_shown_as_such_and_holds_up_no_figure_of_the_run(mini, database, tmp_path):
    observer = Observer(database)
    words = ["", "schedule", "you", "moonlight"]
    for second in 0, 60:
        looks = [replace(peer, held=held) for peer, held in zip(peers_at(second, [9, 2, 2, 2]), words, strict=True)]
        now = swarm_at(second, 9, looks)
        observer.note(now)
    note(list(problems(now, database)), database, now.time)
    told = status_of(mini, database, now.time)
    shown = {peer["name"]: (peer["state"], peer["why"]) for peer in told["peers"]}
    assert shown == {
        "user-0": ("training", ""),
        "user-1": ("paused", "paused: outside of the hours of its volunteer's schedule"),
        "user-2": ("paused", "paused by its volunteer"),
        "user-3": ("paused", "paused"),
    }
    assert told["epoch"] == 9, "it is that of the peers at work"
    assert told["alarms"] == []
    assert history_of(mini, database, tmp_path)["hours"]["peers"][-1] == 1


def test_a_monitor_that_looks_at_an_empty_swarm_has_looked(mini, database):
    observer = Observer(database)
    assert status_of(mini, database, BEGAN)["looked"] is None
    observer.note(swarm_at(0, 9, peers_at(0, [9])))
    for second in range(0, 7200, 90):
        observer.note(swarm_at(second, 9, []))
    assert 0 <= BEGAN + second - status_of(mini, database, BEGAN + 9000)["looked"] < 60
    assert status_of(mini, database, BEGAN + 500)["looked"] <= BEGAN + 500, "a clock that was ahead is no look of now"


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
