"""A rehearsal with real peers; what one cannot be is refused before anything is started."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from dalle_lib.auth import Authority
from dalle_lib.rehearsal.rehearse import rehearse
from dalle_lib.rehearsal.report import Report
from dalle_lib.rehearsal.settings import Rehearsal
from dalle_lib.rehearsal.stage import Act
from dalle_lib.rehearsal.watching import Kept
from dalle_lib.rehearsal.words import in_words, wrong
from dalle_lib.run.parts import MembersCard


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"volunteers": 1}, "expected 2 to 32 volunteers"),
        ({"minutes": 60.0}, "up to 45 minutes, but got 60"),
        ({"up": 0.0}, "up_mbps must be above 0"),
        ({"device": "tpu"}, "expected a device"),
    ],
)
def test_what_cannot_be_played_is_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        Rehearsal(**wrong)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match="expected a new folder"):
        rehearse("emoji-mini", folder=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("counted", "told"), [((5.0,), ["in the 40 s that were left"]), ((5.0, 31.0), [])])
def test_who_comes_back_and_does_not_count_again_is_told(counted, told):
    acts = [
        Act(what=what, name="ada", time=at) for what, at in (("enters", 0.0), ("is killed", 10.0), ("enters", 20.0))
    ]
    report = Report(
        run="club", rehearsal=Rehearsal(), acts=tuple(acts), parts=(), epochs=(), told={}, counted={"ada": counted},
        failures={}, state_bytes=1e6, cores=2, over=60.0,
    )  # fmt: skip
    found = [line for line in wrong(report) if "did not count again" in line]
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


RIGHT = Kept(
    taken=(3, 7), sent=(3, 7), is_sent=True, alarms=(), credited={"ada": 540.0}, computed={"ada": 500}, drawn=7,
    told="",
)  # fmt: skip


def report_of(kept: Kept) -> Report:
    return Report(
        run="club", rehearsal=Rehearsal(), acts=(), parts=(), epochs=(), told={}, counted={}, failures={},
        state_bytes=1e6, cores=2, over=60.0, epoch_samples=48, kept=kept,
    )  # fmt: skip


@pytest.mark.parametrize("spread", [0.00372, None])
def test_how_far_parameters_were_apart_is_told_where_volunteers_told_it(spread):
    assert ("0.37% apart at most" in in_words(report_of(replace(RIGHT, spread=spread)))) == (spread is not None)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, []),
        ({"taken": ()}, ["kept no checkpoint"]),
        ({"sent": (3,), "drawn": 3}, ["epochs 7 were not sent"]),
        ({"drawn": 3}, ["does not draw with the last checkpoint that was sent: 3"]),
        ({"drawn": None, "told": "no room"}, ["does not draw with the last checkpoint that was sent: no room"]),
        ({"credited": {"ada": 900.0}}, ["ada is credited with 900 samples, and computed 500"]),
        ({"is_sent": False, "sent": (), "drawn": None}, []),
    ],
    ids=["all is right", "none", "one is not sent", "an old one", "no picture", "a lie", "data on the true Hub"],
)
def test_what_is_wrong_with_the_monitor_is_told(changed, told):
    found = wrong(report_of(replace(RIGHT, **changed)))[1:]  # the first says that no epoch ended
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


@pytest.mark.chaos
@pytest.mark.long
def test_a_run_for_members_is_played_with_a_stranger_a_ban_and_a_death(mini, swarm_folder):
    members = MembersCard(
        authority=Authority.generate().public_key, organization="crew", invitation="https://a.example"
    )
    run = mini.with_changes(name="club", members=members).save(swarm_folder / "run")
    command = ["run", "rehearse", str(run), "--volunteers", "3", "--minutes", "0.7", "--up", "100", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "dalle_lib", *command, "--out", str(swarm_folder / "out")],
        capture_output=True, text=True, timeout=850,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    acts = {act["what"]: act for act in report["acts"]}
    assert {"is refused", "is banned", "is killed", "enters"} <= set(acts)
    assert "https://a.example" in acts["is refused"]["told"]
    assert "is banned" in report["told"][acts["is banned"]["name"]]
    assert report["epochs"]
    parts = {part["name"]: part for part in report["parts"]}
    assert all(part["sent_bytes"] > 0 for part in parts.values())
    stays = parts["volunteer-1"]  # it gives states, too, of 21 MB: to who joins, and to the monitor
    assert stays["settled_rounds"] > 0
    assert stays["settled_bytes"] == pytest.approx(stays["planned_bytes"], rel=0.9)
    assert stays["settled_bytes"] < stays["sent_bytes"]
    assert sum(part["counted_s"] is not None for part in parts.values()) >= 2
    kept = report["kept"]
    assert kept["taken"] == kept["sent"]
    assert kept["drawn"] == kept["taken"][-1]
    assert set(kept["credited"]) <= {"volunteer-1", "volunteer-2", "volunteer-3"}
    assert kept["credited"]["volunteer-1"] > 0
