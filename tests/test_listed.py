"""The list of a user's peers on this machine: all commands find them, whatever is in it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from peer_files import BEGINNING, peer_with, running
from supervised import supervised
from waiting import wait_until

from dalle_lib.cli.lend import Finish, Pause, Resume, Stop
from dalle_lib.cli.status import Status
from dalle_lib.dashboard.lately import troubles
from dalle_lib.files import state_folder
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.lending import wish_of
from dalle_lib.swarm.process.listed import LISTED, enlist, listed
from dalle_lib.troubles import trouble_in


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """The folder in which commands are typed, which holds no peers; those of a test are beside it."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    return here


def shown(capsys) -> dict[str, str | None]:
    """Return the states that `dalle-lib status` shows, by the folders."""
    Status(json=True).run()
    return {peer["folder"]: peer["state"] for peer in json.loads(capsys.readouterr().out)}


def test_peers_of_any_folder_are_listed_while_they_run_and_steered_from_any_other(elsewhere, tmp_path, capsys):
    (ada := tmp_path / "ada").mkdir()
    (bob := tmp_path / "bob").mkdir()
    until_stopped = "read token; cat > /dev/null; exit 0"
    with supervised(ada, until_stopped) as first, supervised(bob, until_stopped) as second:
        for supervisor in first, second:
            supervisor.stdin.write("\n")
            supervisor.stdin.flush()
        wait_until(lambda: listed() == [ada, bob] and all(Peer(folder).events() for folder in (ada, bob)))
        assert list(shown(capsys)) == [str(ada), str(bob)]
        Pause(name="ada").run()
        assert [wish_of(folder) is not None for folder in (ada, bob)] == [True, False]
        Resume().run()
        Finish().run()
        assert [wish_of(folder).wish for folder in (ada, bob)] == ["finish", "finish"]
        second.kill()
        second.wait()
        assert not Peer(bob).is_running
        Stop().run()
        assert "bob in " + str(tmp_path) + ": it does not run." in capsys.readouterr().out
        assert first.wait(60) == 0
    assert listed() == [bob], "one that was killed is still found, as it should be started again"
    assert list(shown(capsys)) == [str(bob)]
    again = subprocess.run(second.args, input="\nstop\n", text=True, timeout=60)
    assert (again.returncode, listed()) == (0, [])
    Status().run()
    assert capsys.readouterr().out.startswith("No peer of yours runs on this machine, and none has run in peers yet.")


def test_peers_of_the_folder_here_are_shown_once_and_also_when_they_have_left(mini, elsewhere, tmp_path, capsys):
    peer_with(elsewhere / "peers" / "emoji-mini" / "eve", BEGINNING, mini, name="eve")
    ada = peer_with(elsewhere / "peers" / "ada", BEGINNING, mini)
    bob = peer_with(tmp_path / "bob", BEGINNING, mini, name="bob")
    for peer in ada, bob:
        enlist(peer.folder)
    with running(bob):
        assert sorted(Path(folder).name for folder in shown(capsys)) == ["ada", "bob", "eve"]
        Status(folder=elsewhere / "peers").run()
        assert "bob" not in capsys.readouterr().out


def test_whatever_is_in_the_list_breaks_no_command(mini, elsewhere, tmp_path, capsys):
    ada = peer_with(tmp_path / "ada", BEGINNING, mini)
    broken, fifo = tmp_path / "broken", tmp_path / "fifo"
    for folder in ada.folder, broken, tmp_path / "gone":
        enlist(folder)
    peer_with(broken, BEGINNING)
    (broken / "settings.json").write_text("{")
    place = state_folder(LISTED)
    fifo.mkdir()
    os.mkfifo(fifo / "settings.json")
    (place / "folder").mkdir()
    (place / "file").write_bytes(b"\xff" * 4096)
    (place / "e\x1b[31mvil\n").symlink_to("..")
    (place / "loop").symlink_to("loop")
    (place / "to a fifo").symlink_to(fifo)
    (place / "to ada, too").symlink_to(ada.folder)
    os.mkfifo(place / "is a fifo")
    assert listed() == [ada.folder, broken]
    assert shown(capsys).keys() == {str(folder) for folder in listed()}
    with running(ada), running(Peer(broken)):
        Pause().run()
    assert [wish_of(folder).wish for folder in (ada.folder, broken)] == ["pause", "pause"], "it may be a trainer"
    Resume(run_name="emoji-mini").run()
    assert wish_of(ada.folder) is None
    assert "its run is not known" in capsys.readouterr().out
    assert wish_of(broken) is not None


def test_what_another_user_has_written_there_counts_for_nothing(mini, elsewhere, tmp_path, monkeypatch):
    ada = peer_with(tmp_path / "ada", BEGINNING, mini)
    enlist(ada.folder)
    assert listed() == [ada.folder]
    assert state_folder(LISTED).stat().st_mode & 0o077 == 0
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert listed() == []


def test_a_place_that_cannot_be_written_costs_the_list_alone_and_is_said_once(elsewhere, tmp_path, capsys):
    (place := state_folder(LISTED)).parent.mkdir(parents=True)
    place.write_text("no folder")
    supervisor = supervised(tmp_path, "read token; exit 0")
    supervisor.communicate("\n", timeout=60)
    assert supervisor.returncode == 0
    ada = Peer(tmp_path)
    assert [event["event"] for event in ada.events()] == ["started", "problem", "ended"]
    (told,) = troubles(ada.events())
    assert told.startswith("This peer: it is not in the list of your peers on this machine (")
    Status().run()
    out, err = capsys.readouterr()
    assert out.startswith("No peer of yours")
    assert "The list of your peers on this machine is not known" in err
    assert trouble_in(told) == trouble_in(err) is not None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_peer_that_ended_by_an_error_stays_in_the_list(elsewhere, tmp_path, number):
    supervisor = supervised(tmp_path, f"kill -{int(number)} $$")
    supervisor.communicate("\n", timeout=60)
    assert listed() == [tmp_path]
