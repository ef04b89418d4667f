"""`dalle-lib status`: every peer of this machine, by what is in its folder."""

import json
import os
import shutil
import subprocess
import sys
import time

from peer_files import BEGINNING, CONNECTED, LEFT, epoch, peer_with, running

from dalle_lib.cli.status import Status
from dalle_lib.swarm.process.folder import folders_of_peers


def test_it_shows_peers_that_run_and_that_have_ended_in_old_and_new_places(mini, tmp_path, capsys):
    at_work = peer_with(tmp_path / "emoji-mini" / "ada", [*BEGINNING, *epoch(11), *epoch(12)], mini)
    peer_with(tmp_path / "bob", [*BEGINNING, LEFT], name="bob", ago_s=7200.0)
    helper = peer_with(tmp_path / "helper", [CONNECTED], role="bootstrap", name="helper")
    (tmp_path / "emoji-mini" / "not-a-peer").mkdir()
    with running(at_work), running(helper):
        Status(folder=tmp_path).run()
        bob, ada, helping = capsys.readouterr().out.split("\n\n")
        Status(folder=tmp_path, json=True).run()
        told = json.loads(capsys.readouterr().out)
    assert ada.startswith("ada in emoji-mini: Training with the others\n  12/60 · loss 1.43 · 3 peers · yours 31% · ")
    assert f"in {at_work.folder}" in ada
    assert "since " in ada
    assert bob.startswith("bob in emoji-mini: Left the run; progress is saved at epoch 12\n")
    assert "2 h 0 min ago" in bob
    assert helping.startswith("helper in emoji-mini: Helping other peers to find each other\n  since ")
    assert [(peer["name"], peer["state"], peer["is_running"]) for peer in told] == [
        ("bob", "left", False),
        ("ada", "training", True),
        ("helper", "helping", True),
    ]
    assert told[1] | {"epoch": 12, "total_epochs": 60, "share": 0.31, "peers": 3} == told[1]
    assert told[1]["totals"]["samples"] == 192
    assert time.time() - told[0]["since"] > 3600


def test_of_a_monitor_it_tells_the_first_teams(mini, tmp_path, capsys):
    peer_with(tmp_path / "monitor", [CONNECTED], mini, role="observer", name="monitor")
    rows = [[place, f"team-{place}", 7200 - place, 96, 0.1, 3] for place in range(1, 7)]
    for teams, line in (rows, "  teams: 1. team-1 (2 h 0 min, 3 members), 2. team-2"), (["?"], None), ([], None):
        (tmp_path / "status.json").write_text(json.dumps({"teams": teams, "totals": {"teams": len(teams)}}))
        Status(folder=tmp_path).run()
        told = capsys.readouterr().out.splitlines()
        assert told[0].startswith("monitor in emoji-mini: ")
        if line is None:
            assert not any("teams" in each for each in told)
        else:
            assert told[2].startswith(line)
            assert told[2].endswith("5. team-5 (2 h 0 min, 3 members), 1 more"), told[2]


def test_it_changes_nothing_and_says_where_there_is_nobody(mini, tmp_path, capsys):
    Status(folder=tmp_path / "peers").run()
    assert "No peer has run in" in capsys.readouterr().out
    assert not (tmp_path / "peers").exists()
    peer_with(tmp_path / "peers" / "ada", BEGINNING)
    Status(folder=tmp_path / "peers").run()
    assert {file.name for file in (tmp_path / "peers" / "ada").iterdir()} == {"settings.json", "events.jsonl"}
    shutil.rmtree(tmp_path / "peers")
    assert "Ended without saving" in capsys.readouterr().out
    assert folders_of_peers(tmp_path) == []
    Status(folder=tmp_path, json=True).run()
    assert json.loads(capsys.readouterr().out) == []


def test_an_output_that_lacks_letters_gets_question_marks_for_them(mini, tmp_path):
    peer_with(tmp_path / "ada", [*BEGINNING, *epoch(12), LEFT], mini, name="adá")
    command = [sys.executable, "-m", "dalle_lib", "status", "--folder", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "ad? in emoji-mini: Left the run; progress is saved at epoch 12\n  12/60 ? loss 1.43 ?"
    )


def test_a_peer_whose_files_may_not_be_read_is_told_of_and_hides_nobody(mini, tmp_path, monkeypatch, capsys):
    for name in "ada", "zoe":
        peer_with(tmp_path / name, [*BEGINNING, LEFT], mini, name=name)
    opened = os.open

    def refused(path, *arguments, **options):
        if path == tmp_path / "ada" / "peer.lock":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    Status(folder=tmp_path).run()
    ada, zoe = capsys.readouterr().out.split("\n\n")
    assert ada == f"ada: [Errno 13] Permission denied: '{tmp_path / 'ada' / 'peer.lock'}'. Ask its owner to let you."
    assert zoe.startswith("zoe in emoji-mini: Left the run")


def test_it_is_a_command_that_loads_nothing_heavy(tmp_path):
    peer_with(tmp_path / "ada", BEGINNING)
    code = (
        "import sys; from dalle_lib.cli import main; sys.argv = ['dalle-lib', 'status', '--folder', sys.argv[1]];"
        "main(); heavy = {'torch', 'hivemind', 'pandas'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ada in emoji-mini: Ended without saving" in done.stdout


def test_what_others_files_say_is_shown_as_it_is_in_short_lines(mini, tmp_path, capsys):
    peer_with(tmp_path / "e\x1b[31m\nvil", [*BEGINNING, LEFT | {"epoch": "\x1b[2J" + "x" * 10**5}], mini)
    broken = peer_with(tmp_path / "b\x1b[31m", BEGINNING, mini)
    (broken.folder / "settings.json").write_text("{}")
    Status(folder=tmp_path).run()
    shown = capsys.readouterr().out
    assert shown.count("\\x1b") >= 3
    assert all(line.isprintable() and len(line) < 1100 for line in shown.splitlines())
