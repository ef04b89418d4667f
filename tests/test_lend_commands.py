"""`dalle-lib pause`, `resume`, `finish` and `stop`: which peers of a folder they mean, and what they say and ask."""

import json
import os
import re
import subprocess
from dataclasses import replace

import pytest
from peer_files import BEGINNING, CONNECTED, LEFT, STARTED, epoch, peer_with, running, seen
from statuses import peer_status

from dalle_lib.cli.lend import Finish, Pause, Resume, Stop
from dalle_lib.cli.status import Status
from dalle_lib.dashboard.cards import cards_html
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.words import helped_line, news, state_in_words
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.process.lending import WISH, ask, wish_of
from dalle_lib.swarm.process.standing import Standing
from dalle_lib.swarm.process.status import SwarmStatus

HELD = {"event": "held", "reason": "you", "until": None, "epoch": 12}
GOING_ON = {"event": "going_on", "epoch": 14}


def asked(peer) -> str | None:
    wish = wish_of(peer.folder)
    return None if wish is None else wish.wish


@pytest.fixture
def peers(mini, tmp_path):
    """ada and helper run, in one run; bob, in another folder of it, has left."""
    ada = peer_with(tmp_path / "emoji-mini" / "ada", [*BEGINNING, *epoch(12)], mini)
    bob = peer_with(tmp_path / "bob", [*BEGINNING, LEFT], name="bob")
    helper = peer_with(tmp_path / "emoji-mini" / "helper", [STARTED, CONNECTED], role="bootstrap", name="helper")
    with running(ada), running(helper):
        yield ada, bob, helper


def test_pause_and_finish_ask_the_trainers_that_run_and_say_why_no_others(peers, tmp_path, capsys):
    for command, wish, does in (Pause, "pause", "pauses after the batch"), (Finish, "finish", "leaves after its epoch"):
        command(folder=tmp_path).run()
        bob, ada, helper = capsys.readouterr().out.splitlines()
        assert ada.startswith(f"ada in {tmp_path / 'emoji-mini'}: it {does}")
        assert bob.endswith(": it does not run.")
        assert helper.endswith("it computes nothing, and only helps others: `dalle-lib stop` ends it.")
        assert list(map(asked, peers)) == [wish, None, None]


def test_resume_takes_back_what_was_asked_also_of_a_peer_that_does_not_run(peers, tmp_path, capsys):
    ada, bob, _ = peers
    ask(ada.folder, "finish")
    ask(bob.folder, "pause")
    Resume(folder=tmp_path, name="bob").run()
    assert capsys.readouterr().out.endswith(": it will compute when it is started again.\n")
    assert (asked(ada), asked(bob)) == ("finish", None)
    (ada.folder / WISH).write_text("{")
    assert Standing.of(ada).asked is None, "a broken wish asks nothing"
    Resume(folder=tmp_path, name="ada", run_name="emoji-mini").run()
    assert ": it goes on, unless something else holds it" in capsys.readouterr().out
    assert asked(ada) is None


def test_a_name_or_run_that_is_not_there_is_told(peers, tmp_path):
    for chosen in {"name": "eve"}, {"run_name": "emoji"}, {"name": "bob", "run_name": "emoji"}:
        with pytest.raises(ValueError, match="`dalle-lib status` shows those that are; name another --folder"):
            Pause(folder=tmp_path, **chosen).run()
    with pytest.raises(ValueError, match="Go to the folder in which you typed `dalle-lib join`"):
        Pause(folder=tmp_path / "peers").run()


def test_a_run_is_also_what_was_typed_for_it_at_joining(peers, tmp_path, capsys):
    ada, _, _ = peers
    PeerSettings(run="owner/name", name="ada").save(ada.folder / "settings.json")
    Pause(folder=tmp_path, run_name="owner/name").run()
    assert capsys.readouterr().out.startswith("ada in ")
    assert asked(ada) == "pause"


def test_events_of_another_version_keep_no_peer_from_what_is_asked(mini, tmp_path):
    ada, bob = (
        peer_with(tmp_path / name, [*BEGINNING, {"event": "epoch"}], mini, name=name) for name in ("ada", "bob")
    )
    with running(ada), running(bob):
        for command, wish in (Pause, "pause"), (Finish, "finish"), (Resume, None):
            command(folder=tmp_path).run()
            assert [asked(ada), asked(bob)] == [wish, wish]


@pytest.mark.parametrize("older_s", [-100, 100])
def test_stop_never_signals_another_program_whose_id_is_the_supervisors_elsewhere(tmp_path, monkeypatch, older_s):
    peer = peer_with(tmp_path / "ada", BEGINNING)
    monkeypatch.setattr("dalle_lib.swarm.process.join.PID_TIMEOUT_S", 0.5)
    file = peer.folder / "supervisor.pid"
    with running(peer), subprocess.Popen(["sleep", "600"]) as another:
        try:
            file.write_text(str(another.pid))
            written = file.stat().st_mtime + older_s
            os.utime(file, (written, written))
            with pytest.raises(RuntimeError, match=r"expected .*supervisor\.pid to name the process"):
                Stop(folder=tmp_path).run()
            assert another.poll() is None
        finally:
            another.kill()


@pytest.mark.parametrize(
    ("events", "state", "words"),
    [
        ([HELD], "paused", "Paused by you; `dalle-lib resume` lets it go on"),
        ([HELD | {"reason": "battery"}], "paused", "Paused: on battery, until it is plugged in"),
        ([HELD | {"reason": "another version's"}], "paused", "Paused"),
        ([HELD, GOING_ON], "training", "Training with the others"),
        ([HELD, GOING_ON, HELD, LEFT], "left", "Left the run; progress is saved at epoch 12"),
    ],
)
def test_a_held_peer_is_paused_and_says_why(mini, tmp_path, events, state, words):
    with running(peer_with(tmp_path, [*BEGINNING, *epoch(12), *events], mini)) as peer:
        standing = Standing.of(peer)
        assert (standing.state, state_in_words(standing)) == (state, words)
        assert standing.seconds_left is None or state != "paused"


def test_a_card_tells_of_pauses_and_how_long_those_were_that_are_over(mini, tmp_path):
    title = "while it is paused"
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(12)], mini)
    assert title not in cards_html(peer, mini)
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(12), HELD], mini)
    assert title in cards_html(peer, mini)
    assert "Yours has been paused" not in cards_html(peer, mini)
    peer = peer_with(tmp_path, [*BEGINNING, *epoch(12), HELD, HELD | {"reason": "busy"}, GOING_ON, HELD], mini)
    assert title in cards_html(peer, mini)
    assert "Yours has been paused 1 time, for 2 s in all." in cards_html(peer, mini)


def test_paused_peers_are_marked_and_not_counted_among_those_that_compute(mini, tmp_path):
    peer = peer_with(tmp_path, [STARTED, CONNECTED], mini, role="bootstrap")
    seen(tmp_path, None, 12, ["ada"])
    ada = SwarmStatus.read(tmp_path)
    bob = peer_status("id1", "bob", samples_per_s=3.0, held="busy")
    replace(ada, peers=[*ada.peers, bob]).write(tmp_path)
    with running(peer):
        standing = Standing.of(peer)
        assert state_in_words(standing) == "Helping 2 trainers (1 of them paused) and newcomers to find each other"
        assert helped_line(standing) == "12/60 · 1 peer · together 7 samples a second: ada, bob (paused)"


def test_status_and_panel_show_what_holds_a_peer_and_what_it_was_asked(mini, tmp_path, capsys):
    with running(peer_with(tmp_path / "ada", [*BEGINNING, *epoch(12)], mini)) as ada:
        ask(ada.folder, "finish")
        Status(folder=tmp_path).run()
        assert "Training with the others; it leaves after this epoch\n" in capsys.readouterr().out
        with open(ada.folder / "events.jsonl", "a") as events:
            events.write(
                json.dumps({"time": Standing.of(ada).since, **HELD, "reason": "schedule", "until": 0.0}) + "\n"
            )
        seen(ada.folder, 10, at_epoch=20, told={"held": "schedule"})
        Status(folder=tmp_path, json=True).run()
        (told,) = json.loads(capsys.readouterr().out)
        assert told | {"state": "paused", "hold": {"reason": "schedule", "until": 0.0}, "epoch": 12} == told
        assert told["words"].endswith(": your schedule; it was asked to leave")
        assert "Paused until" in panel_html(ada)
        held = "".join(line for line in news(ada.events()) if "schedule" in line)
        assert re.fullmatch(r"\d\d:\d\d: paused until \d\d:\d\d \(\w+\): your schedule\.", held)
