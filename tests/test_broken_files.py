"""A broken file in one peer's folder hides no other peer, hangs nothing and ends no watching."""

import contextlib
import fcntl
import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from peer_files import BEGINNING, LEFT, epoch, peer_with, running, save_progress, seen

from dalle_lib.cli.status import Status
from dalle_lib.dashboard import watching
from dalle_lib.dashboard.terminal import Lines
from dalle_lib.files import MAX_RECORD_BYTES, BrokenFile, read_record
from dalle_lib.swarm import Peer, PeerSettings
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.folder import run_of, saved_epoch
from dalle_lib.swarm.process.status import SwarmStatus


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def enlarge(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b" " * MAX_RECORD_BYTES)


def add_field(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"of_another_version": 1}))


BREAKING = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": cut,
    "nul": lambda file: file.write_bytes(b"\0" * 500),
    "not text": lambda file: file.write_bytes(b"\xff\xfe\x80"),
    "a list": lambda file: file.write_text("[1, 2]"),
    "null": lambda file: file.write_text("null"),
    "deep": lambda file: file.write_text("[" * 200_000),
    "other fields": lambda file: file.write_text('{"a": 1}'),
    "one more field": add_field,
    "too large": enlarge,
    "a folder": make_folder,
    "a pipe": make_pipe,
}


def ada_and_zoe(mini, folder: Path) -> tuple[Peer, Peer]:
    """Return two peers of a run, with all their files."""
    ada = peer_with(folder / "ada", [*BEGINNING, *epoch(10)], mini)
    zoe = peer_with(folder / "zoe", [*BEGINNING, *epoch(10), LEFT], mini, name="zoe")
    for peer in ada, zoe:
        seen(peer.folder, 100, at_epoch=10)
    return ada, zoe


@pytest.mark.parametrize("breaking", BREAKING.values(), ids=BREAKING)
@pytest.mark.parametrize("name", ["settings.json", "bound_to.json"])
def test_a_broken_file_is_named_with_what_to_do_and_the_other_peers_are_shown(mini, tmp_path, capsys, name, breaking):
    ada, _ = ada_and_zoe(mini, tmp_path)
    breaking(ada.folder / name)
    Status(folder=tmp_path).run()
    broken, zoe = capsys.readouterr().out.split("\n\n")
    assert broken.startswith(f"ada: {ada.folder / name} cannot be read (")
    told, *links = broken.split("\n")
    assert told.endswith("Remove it: `dalle-lib join` with the peer's name writes it anew.")
    assert all("docs/troubleshooting.md#" in link for link in links)
    assert zoe.startswith("zoe in emoji-mini: Left the run")
    Status(folder=tmp_path, json=True).run()
    broken, zoe = json.loads(capsys.readouterr().out)
    assert (broken["name"], broken["state"], broken["folder"]) == ("ada", None, str(ada.folder))
    assert str(ada.folder / name) in broken["error"]
    assert zoe["state"] == "left"


WRONG = {
    "target_batch_size": [0, -1, "192", None, 10**400],
    "total_epochs": [0, None],
    "time": [1e300, float("nan"), -1.0, "now", None],
    "epoch": [-1, "ten", None],
    "samples_in_epoch": ["100", float("nan"), 10**400],
    "peers": [None, "abc", [1], [{}]],
    "said_complete": [0],
}


def test_a_status_that_cannot_be_one_is_none(mini, tmp_path):
    ada, _ = ada_and_zoe(mini, tmp_path)
    file = ada.folder / "status.json"
    whole = json.loads(file.read_text())
    assert SwarmStatus.read(ada.folder).samples_in_epoch == 100
    assert SwarmStatus.read(tmp_path / "nobody") is None
    for breaking in BREAKING.values():
        breaking(file)
        assert SwarmStatus.read(ada.folder) is None
        file.rmdir() if file.is_dir() else file.unlink()
        file.write_text(json.dumps(whole))
    (first, *others) = whole["peers"]
    peers = [
        {"peers": [first | wrong, *others]} for wrong in ({"name": "\x1b[31m"}, {"samples_per_s": "7"}, {"loss": -1})
    ]
    for wrong in [{name: value} for name, values in WRONG.items() for value in values] + peers:
        file.write_text(json.dumps(whole | wrong))
        assert SwarmStatus.read(ada.folder) is None, wrong
    for right in {}, {"samples_in_epoch": None}, {"said_complete": True}, {"peers": []}:
        file.write_text(json.dumps(whole | right))
        assert SwarmStatus.read(ada.folder) is not None, right


def test_who_asks_whether_a_peer_runs_is_not_taken_for_it(mini, tmp_path):
    ada, _ = ada_and_zoe(mini, tmp_path)
    assert not ada.is_running
    with running(ada):
        assert ada.is_running
    with open(ada.folder / "peer.lock") as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)  # as another program does that asks at this moment
        assert not ada.is_running
    make_pipe(ada.folder / "peer.lock")
    assert not ada.is_running


@pytest.mark.parametrize("events", [[{"event": "epoch"}], [{"event": "left", "epoch": "ten", "samples": 1}]])
def test_an_event_of_another_version_is_told_of_and_hides_nobody(mini, tmp_path, capsys, events):
    ada, _ = ada_and_zoe(mini, tmp_path)
    for event in events:
        EventLog(ada.folder).write(**event)
    Status(folder=tmp_path).run()
    broken, zoe = capsys.readouterr().out.split("\n\n")
    assert broken.startswith(f"ada: {ada.folder / 'events.jsonl'} holds an event that this version")
    assert "Move that file away" in broken
    assert zoe.startswith("zoe in emoji-mini: Left the run")


def test_broken_progress_is_told_of_and_hides_nobody(mini, tmp_path, capsys):
    ada_and_zoe(mini, tmp_path)
    save_progress(tmp_path / "bob", mini, epoch=3)
    assert saved_epoch(tmp_path / "bob") == 3
    for breaking in (BREAKING[kind] for kind in ("empty", "a list", "a folder")):
        breaking(tmp_path / "bob" / "optimizer.safetensors")
        for ask in run_of, saved_epoch:
            with pytest.raises(BrokenFile, match=r"bob/optimizer.safetensors cannot be read .* Remove it"):
                ask(tmp_path / "bob")
    Status(folder=tmp_path).run()
    ada, bob, zoe = capsys.readouterr().out.split("\n\n")
    assert ada.startswith("ada in emoji-mini")
    assert bob.startswith("bob: ")
    assert zoe.startswith("zoe in emoji-mini")


def test_the_errors_of_a_record_name_its_file_and_one_that_is_missing_is_no_broken_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "none", dict, "Do this.")
    (tmp_path / "some").write_text("{")
    with pytest.raises(BrokenFile, match=r"some cannot be read \(.*\)\. Do this\."):
        read_record(tmp_path / "some", dict, "Do this.")


def test_settings_are_replaced_whole(tmp_path, monkeypatch):
    file = tmp_path / "settings.json"
    PeerSettings(run="emoji-mini", name="ada").save(file)

    def cut_short(path, text, **_):
        path.write_bytes(text[:20].encode())
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(OSError, match="no space left"):
        PeerSettings(run="emoji-mini", name="bob").save(file)
    assert PeerSettings.load(file).name == "ada"


class Screen(io.StringIO):
    """A terminal, as far as a program asks."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [io.StringIO, Screen], ids=["file", "terminal"])
@pytest.mark.parametrize("breaking", [cut, make_folder, make_pipe])
@pytest.mark.parametrize("name", ["settings.json", "bound_to.json", "status.json", "events.jsonl"])
def test_the_watching_of_a_peer_goes_on_when_its_files_are_broken_for_a_while(
    mini, tmp_path, monkeypatch, name, breaking, screen
):
    ada, _ = ada_and_zoe(mini, tmp_path)
    file, progress, looks = ada.folder / name, screen(), []
    whole = file.read_bytes()

    def step(_seconds: float) -> None:
        looks.append(progress.getvalue())
        if len(looks) == 2:
            if name != "events.jsonl":
                EventLog(ada.folder).write(**epoch(11)[1])
            breaking(file)
        if len(looks) == 5:
            file.rmdir() if file.is_dir() else file.unlink()
            file.write_bytes(whole)
            for event in epoch(12):
                EventLog(ada.folder).write(**event)
        if len(looks) == 7:
            stop.close()

    monkeypatch.setattr(sys, "stderr", progress)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("dalle_lib.dashboard.terminal._no_sign_of_ctrl_c", contextlib.nullcontext)
    monkeypatch.setattr(watching.time, "sleep", step)
    with contextlib.ExitStack() as stop:
        stop.enter_context(running(ada))
        watching.watch(ada)
    told = progress.getvalue()
    assert "12/60" in told[len(looks[4]) :], "it shows what came after"
    is_failure = name.endswith(("settings.json", "bound_to.json")) or (name, breaking) == ("events.jsonl", make_folder)
    assert told.count("cannot be shown now") == is_failure, "once, and not for what readers skip"


def test_who_reads_no_more_ends_the_watching(mini, tmp_path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    ada, _ = ada_and_zoe(mini, tmp_path)
    monkeypatch.setattr(watching, "_display", lambda *_: contextlib.nullcontext(Lines(Closed())))
    with running(ada), pytest.raises(BrokenPipeError):
        watching.watch(ada)


def test_a_torn_event_while_a_peer_trains_is_not_even_told_of(mini, tmp_path, capsys):
    ada, _ = ada_and_zoe(mini, tmp_path)
    with open(ada.folder / "events.jsonl", "ab") as handle:
        handle.write(b"\0\0\0\n" + json.dumps({"time": time.time(), "event": "epoch"}).encode()[:-9])
    for event in epoch(11):
        EventLog(ada.folder).write(**event)
    with running(ada):
        Status(folder=tmp_path).run()
    assert capsys.readouterr().out.startswith("ada in emoji-mini: Training with the others\n  11/60 · ")
