"""What notebook 07 shows of a run: as its monitor tells it, from a folder, from the Hub, whatever strangers wrote."""

import json
import shutil

import ipywidgets
import pytest
from test_run_charts import simulated_folder  # noqa: F401 (a fixture)
from told_runs import history, peer, status, user, write_told

from dalle_lib.dashboard.run_charts import CHARTS
from dalle_lib.dashboard.run_told import RunTold, chart, is_counted, leaderboard, looking_back, machines, standing
from dalle_lib.files import BrokenFile
from dalle_lib.monitor.published import HISTORY
from dalle_lib.run.newest import STATUS, USER_COLUMNS

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe"


@pytest.fixture
def told(simulated_folder):  # noqa: F811
    return RunTold.of(str(simulated_folder))


def with_status(told, **changes) -> RunTold:
    return RunTold(json.loads(json.dumps({**told.status, **changes})), told.history, folder=told.folder)


def test_a_run_is_found_in_the_monitors_folder_and_in_those_above(simulated_folder, tmp_path, told):  # noqa: F811
    shutil.copytree(simulated_folder, tmp_path / "demo" / "swarm" / "monitor")
    for place in tmp_path / "demo", tmp_path / "demo" / "swarm", tmp_path / "demo" / "swarm" / "monitor":
        assert RunTold.of(str(place)).history == told.history
    with pytest.raises(ValueError, match="name the folder that `dalle-lib monitor` writes"):
        RunTold.of(str(tmp_path))


def test_a_run_on_the_hub_is_what_its_monitor_has_sent(simulated_folder, hub, mini, tmp_path, told):  # noqa: F811
    card = mini.with_changes(name="simulated", checkpoints="crew/run-checkpoints")
    hub.add("crew/run", card.save(tmp_path / "run"))
    hub.add("crew/run-checkpoints", simulated_folder)
    there = RunTold.of("crew/run")
    assert there.history == told.history
    name = there.rows("pictures")[-1]["first"]
    assert there.picture(name) == (simulated_folder / name).read_bytes()
    assert isinstance(looking_back(there), ipywidgets.VBox)
    without = mini.with_changes(checkpoints=None)
    hub.add("crew/other", without.save(tmp_path / "other"))
    with pytest.raises(ValueError, match="names no repository of checkpoints"):
        RunTold.of("crew/other")


def test_how_a_run_stands_says_how_old_that_is_and_when_its_monitor_is_silent(told):
    now = told.status["written"]
    assert "5 min ago" in standing(told, now + 300).data
    assert "silent" not in standing(told, now + 300).data
    assert "silent" in standing(told, now + 7200).data
    assert "silent" not in standing(with_status(told, state="finished"), now + 7200).data
    recorded = standing(with_status(told, played=now + 7200), now + 7200).data
    assert "open, in a recording" in recorded
    assert "silent" not in recorded


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_is_drawn_or_says_that_nothing_is_told(told, name):
    assert "<svg" in chart(told, name).data
    nothing = RunTold({**told.status, "users": []}, {}, folder=told.folder)
    assert "tells nothing" in chart(nothing, name).data


def test_charts_over_time_and_samples_differ_from_those_over_epochs(told):
    assert len({chart(told, "objective", over).data for over in ("epoch", "time", "samples")}) == 3


def test_a_user_finds_rank_and_all_machines_by_the_name_of_one(told):
    users = leaderboard(told)
    assert users.index[0] == 1
    first = users["user"].iloc[0]
    assert "Yes" in is_counted(told, first).data
    assert "rank 1 of" in is_counted(told, first).data
    peers = [{**peer, "user": first if place < 3 else "else"} for place, peer in enumerate(told.status["peers"])]
    crowd = with_status(told, peers=peers)
    assert len(machines(crowd, peers[1]["name"])) == 3
    assert len(machines(crowd, peers[1]["id"])) == 3
    assert "Yes" in is_counted(crowd, peers[1]["name"]).data
    assert "lists nobody" in is_counted(told, "nobody").data
    assert machines(told, "").empty


def test_a_name_is_a_users_before_it_is_that_of_a_strangers_peer(tmp_path):
    peers = [peer("ada", user="mallory"), peer("box", user="mallory"), peer("box", user="ada", id="QmAdas"),
             peer("QmAdas", user="mallory")]  # fmt: skip
    there = RunTold(status(peers=peers, users=[user(1, "mallory"), user(2, "ada")]), history(), folder=tmp_path)
    for name in "ada", "QmAdas":
        assert "Yes: ada has rank 2 of" in is_counted(there, name).data
        assert machines(there, name)["user"].tolist() == ["ada"]
    assert "Peers of 2 users are called box: give your user name" in is_counted(there, "box").data
    assert machines(there, "box")["name"].tolist() == ["box", "box"]
    alone = RunTold(status(peers=peers[:1], users=[user(1, "mallory"), user(2, "ada")]), history(), folder=tmp_path)
    assert "Yes: ada has rank 2 of" in is_counted(alone, "ada").data
    assert machines(alone, "ada").empty, "none of hers is there"


def test_a_row_that_is_broken_is_left_out_and_the_others_stay(tmp_path):
    broken = [[], [1], user(2, "bob")[:-1], [*user(3, "cy"), 1], [None] * len(USER_COLUMNS)]
    there = RunTold(status(users=[*broken, user(4, "ada")]), history(), folder=tmp_path)
    assert leaderboard(there)["user"].tolist() == ["ada"]


def test_a_peer_that_is_seen_and_not_listed_yet_is_told_what_is_missing(told):
    new = {**told.status["peers"][0], "user": "newcomer", "name": "new"}
    assert "ten minutes of computing" in is_counted(with_status(told, peers=[new]), "new").data


def test_what_strangers_write_stays_text(told):
    row = dict(zip(USER_COLUMNS, told.status["users"][0], strict=True)) | {"user": HOSTILE, "team": HOSTILE}
    peer = {**told.status["peers"][0], "user": HOSTILE, "name": HOSTILE, "why": HOSTILE}
    alarm = {"kind": "x", "told": HOSTILE, "since": 1, "until": None}
    hostile = with_status(told, users=[list(row.values())], peers=[peer], alarms=[alarm], run=HOSTILE)
    shown = [standing(hostile).data, is_counted(hostile, HOSTILE).data, chart(hostile, "leaderboard").data]
    shown += [leaderboard(hostile).to_html(), machines(hostile, HOSTILE).drop(columns="why").to_html()]
    for text in shown:
        assert "<img" not in text
        assert "\u202e" not in text


def test_a_picture_that_is_no_picture_of_the_run_is_not_shown(told, tmp_path):
    told_there = json.loads(json.dumps(told.history))
    told_there["pictures"]["first"][-1] = "../../etc/passwd"
    outside = RunTold(told.status, told_there, folder=told.folder)
    slider, picture = looking_back(outside).children
    assert "No picture of epoch" in picture.value
    assert "data:image" not in picture.value
    slider.value = told_there["pictures"]["epoch"][0]
    assert "data:image/webp" in picture.value


def test_a_status_that_is_cut_or_of_something_else_is_told_of(simulated_folder, tmp_path):  # noqa: F811
    shutil.copytree(simulated_folder, tmp_path / "cut")
    for name in STATUS, HISTORY:
        (tmp_path / "cut" / name).write_text('{"epochs": ')
        with pytest.raises(ValueError, match="Its monitor writes it anew"):
            RunTold.of(str(tmp_path / "cut"))


ODD = [None, [], {}, "x\u202e", True, -(2**70), 2**70, 1e308, float("nan"), float("inf"), [None], [[1]], {"a": 1}]
READ = ("run", "state", "written", "epoch", "total_epochs", "epoch_s", "peers", "peers_by_state", "totals", "alarms",
        "users", "teams")  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_whatever_a_field_holds_the_notebook_shows_a_run_or_says_what_is_wrong(tmp_path, value):
    folder, usual = write_told(tmp_path / "monitor"), status()
    one = {"users": [user(1, "ada")], "alarms": [{"told": "x", "until": None}]}
    changes = [{name: value} for name in READ]
    changes += [{"peers": [{**usual["peers"][0], name: value}]} for name in usual["peers"][0]]
    changes += [{"users": [[value if place == at else each for place, each in enumerate(one["users"][0])]]}
                for at in range(len(USER_COLUMNS))]  # fmt: skip
    changes += [{"alarms": [{**one["alarms"][0], name: value}]} for name in one["alarms"][0]]
    changes += [{"totals": {"users": value}}, {"peers_by_state": {"training": value}}]
    refused = 0
    for change in changes:
        (folder / STATUS).write_text(json.dumps(usual | change))
        try:
            there = RunTold.of(str(folder))
        except BrokenFile:
            refused += 1
            continue
        for show in standing, leaderboard, looking_back:
            show(there)
        is_counted(there, "ada")
        machines(there, "ada")
    assert 0 < refused < len(changes)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_whatever_a_table_holds_a_chart_is_drawn_or_says_that_nothing_is_told(tmp_path, value):
    went = history()
    for column in [*went["epochs"].values(), *went["evaluations"].values(), *went["pictures"].values()]:
        column[0] = value
    there = RunTold(status(), went, folder=tmp_path)
    assert "<svg" in chart(there, "objective").data
    assert "<svg" in chart(there, "held_out").data
    assert isinstance(looking_back(there), ipywidgets.VBox)
    assert "tells nothing" in chart(RunTold(status(), dict.fromkeys(went, value)), "objective").data


def test_a_status_of_the_future_does_not_pass_for_one_of_now(told):
    assert "by a clock that is 2 h 0 min ahead" in standing(told, told.status["written"] - 7200).data
