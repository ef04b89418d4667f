"""What a volunteer sees of their peer in a terminal: a line an epoch, one panel, how it begins and ends."""

import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from conftest import processes_of
from peer_files import BEGINNING, CONNECTED, LEFT, STARTED, epoch, peer_with, running, save_progress, seen
from rich.console import Console

from dalle_lib.cli.join import Join, ending, is_complete, limits
from dalle_lib.dashboard import watching
from dalle_lib.dashboard.terminal import Lines, fitted, live_panel, panel
from dalle_lib.dashboard.words import COMPLETE
from dalle_lib.swarm import LocalSwarm, Peer, PeerSettings
from dalle_lib.swarm.peer.bootstrap import STATUS_EVERY_S
from dalle_lib.swarm.process.join import LEAVE_TIMEOUT_S
from dalle_lib.swarm.process.standing import Standing
from dalle_lib.swarm.process.status import SwarmStatus


def test_a_bootstrap_peer_tells_who_is_there_whenever_that_changes(mini, tmp_path):
    file, console = io.StringIO(), Console(width=90, file=io.StringIO(), record=True)
    with running(peer_with(tmp_path, [STARTED, CONNECTED], mini, role="bootstrap")) as peer:
        lines = Lines(file)
        for at_epoch, names in (0, ()), (0, ["ada"]), (0, ["ada"]), (7, ["ada", *"bcdefghij"]), (60, ()):
            seen(tmp_path, None, at_epoch, names, said_complete=at_epoch == 60)
            lines(peer)
        seen(tmp_path, None, 12)
        console.print(panel(Standing.of(peer)))
    assert file.getvalue().splitlines() == [
        "Listening on 127.0.0.1:4321, 192.0.2.1:4321.",
        "0/60 · Waiting for trainers: nobody is there now",
        "0/60 · 1 peer · together 7 samples a second: ada",
        "7/60 · 10 peers · together 70 samples a second: ada, b, c, d, e, f, g, h, 2 more",
        "60/60 · Peers that have left say that the run is complete; newcomers learn it here",
    ]
    shown = console.export_text()
    assert all(part in shown for part in ("Helping 3 trainers", "12/60", "ada, bob, eve"))
    assert "epoch ━" not in shown


def test_prose_is_broken_at_words_and_what_is_copied_stays_whole():
    address = "Address: /ip4/192.0.2.1/tcp/4321/p2p/" + "Q" * 40
    command = "Friends: dalle-lib join --run emoji-mini --name your-name"
    told = fitted(f"Limits:  until the run is complete, 1 processor thread.\n{address}\n{command}\n", 40)
    assert told.splitlines() == [
        "Limits:  until the run is complete, 1",
        "         processor thread.",
        address,
        command,
    ]


@pytest.mark.parametrize("width", [50, 120])
def test_the_panel_has_the_same_facts_two_bars_and_what_ctrl_c_does(mini, tmp_path, width):
    seen(tmp_path, 48, at_epoch=12)
    with running(peer_with(tmp_path, [*BEGINNING, *epoch(11), *epoch(12)], mini)) as peer:
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(panel(Standing.of(peer), "Ctrl+C leaves and saves."))
    text = console.export_text()
    assert all(len(line) <= min(width, 78) for line in text.splitlines())
    facts = "emoji-mini · ada", "Training with the others", "12/60", "25%", "yours 31%", "192 samples", "bob", "Ctrl+C"
    assert all(fact in text for fact in facts), text
    done = Console(width=width, file=io.StringIO(), record=True)
    done.print(panel(Standing.of(peer)))
    assert "epoch ━" not in done.export_text()


def test_ctrl_c_ends_only_the_watching_of_a_peer_that_another_program_runs(mini, tmp_path, monkeypatch, capsys):
    with subprocess.Popen(["sleep", "600"]) as other, running(peer_with(tmp_path, BEGINNING, mini)) as peer:
        (tmp_path / "supervisor.pid").write_text(str(other.pid))

        def interrupt(_seconds):
            raise KeyboardInterrupt

        monkeypatch.setattr(watching.time, "sleep", interrupt)
        watching.watch(peer)
        monkeypatch.undo()
        told = capsys.readouterr().err
        assert other.poll() is None, "the peer was asked to stop"
        other.kill()
    assert "Ctrl+C only stops watching" in told
    assert "Stopped watching. The peer goes on" in told


def test_watching_for_some_minutes_ends_and_the_peer_goes_on(mini, tmp_path):
    with running(peer_with(tmp_path, BEGINNING, mini)) as peer:
        watching.watch(peer, minutes=0.001)
        assert peer.is_running


def test_the_terminal_of_another_session_shows_the_panel_and_is_left_as_it_is(mini, tmp_path):
    ours, theirs = pty.openpty()  # as under `setsid`: no process of this session may ask who is in the foreground
    before = termios.tcgetattr(theirs)
    with os.fdopen(theirs, "w") as file, running(peer_with(tmp_path, BEGINNING, mini)) as peer:
        with live_panel(file) as show:
            assert termios.tcgetattr(theirs) == before
            show(peer)
        assert termios.tcgetattr(theirs) == before
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:  # an error is the end
        while some := terminal.read(65536):
            shown += some
    assert "Training with the others" in shown.decode()


def test_a_bootstrap_peer_that_has_left_is_told_what_that_means_and_no_totals(mini, tmp_path):
    peer = peer_with(tmp_path, [CONNECTED, {"event": "ended", "exit_code": 0}], role="bootstrap")
    told = ending(peer, Join(peer=PeerSettings(run="emoji-mini", role="bootstrap")), mini)
    assert told == "This peer has left: newcomers no longer find the others through it."


def test_limits_and_the_command_to_go_on_name_what_was_given():
    told = "it leaves after 30 minutes, it computes 50% of the time, on 1 processor thread"
    assert told == limits(PeerSettings(run="r", max_minutes=30.0, duty=0.5, device="cpu", threads=1))
    more = {"monthly_gb": 5.0, "max_upload_mbps": 8.0, "niceness": 19, "batch_size": 4, "gpu_share": 0.5}
    told = limits(PeerSettings(run="r", device="cpu", **more))
    assert "at most 4 samples at a time, at niceness 19, sending at most 8 Mbit/s, until all your peers" in told
    assert "GPU" not in told
    assert limits(PeerSettings(run="r", role="bootstrap")) == "until you press Ctrl+C"
    settings = PeerSettings(run="owner/run", name="ada", initial_peers=("/ip4/a", "/ip4/b"), client_mode=True)
    assert Join(peer=settings, folder=Path("here")).as_typed() == [
        *("dalle-lib", "join", "--run", "owner/run", "--name", "ada", "--initial-peers", "/ip4/a", "/ip4/b"),
        *("--client-mode", "--folder", "here"),
    ]
    assert Join(peer=PeerSettings(run="emoji")).as_typed() == ["dalle-lib", "join", "--run", "emoji"]


def test_who_comes_late_to_a_finished_run_is_told_so_and_nothing_is_started(mini, tmp_path, capsys):
    folder = tmp_path / "emoji-mini" / "ada"
    ended = [*BEGINNING, *epoch(59), *epoch(60), LEFT | {"epoch": 60}, {"event": "ended", "exit_code": 0}]
    peer = peer_with(folder, ended, mini)
    save_progress(folder, mini, epoch=60)
    (folder / "model.safetensors").touch()
    events = (folder / "events.jsonl").read_bytes()
    Join(peer=PeerSettings(run="emoji-mini", name="ada"), folder=tmp_path).run()
    told = capsys.readouterr().out
    assert "The run is complete at epoch 60; the model is saved." in told
    assert f"--run {folder}" in told
    assert "Go on:" not in told
    assert (folder / "events.jsonl").read_bytes() == events
    assert not peer.is_running


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        self._text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dalle_lib", *command], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=_take_terminal, env={**os.environ, "COLUMNS": "90", "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)

    def text(self) -> str:
        """Return all that it has shown, without colours."""
        while select.select([self._ours], [], [], 0.1)[0]:
            try:
                self._text += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # it has ended
                break
        return re.sub(r"\x1b\[[\d;?]*\w", "", self._text)

    def wait_for(self, text: str, timeout_s: float = 120.0) -> str:
        deadline = time.monotonic() + timeout_s
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, f"no {text!r} in:\n{shown}"
        return shown

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def end(self) -> str:
        """Return all that it has shown when it has ended by itself, which must be without an error."""
        deadline = time.monotonic() + 2 * LEAVE_TIMEOUT_S
        while self.process.poll() is None:
            self.text()
            assert time.monotonic() < deadline, "it does not end"
        shown = self.text()
        os.close(self._ours)
        assert self.process.returncode == 0, shown
        return shown


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.peers
def test_a_volunteer_joins_leaves_comes_back_and_a_second_terminal_only_watches(mini, swarm_folder):
    card = mini.with_changes(
        name="small",
        optimizer={**mini.optimizer.model_dump(), "warmup_epochs": 1, "total_epochs": 60},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 64},
    )
    card.save(swarm_folder / "run")
    join = (
        "join",
        "--run",
        "run",
        "--name",
        "ada",
        "--host",
        "127.0.0.1",
        "--batch-size",
        "8",
        "--device",
        "cpu",
        "--alone",
    )
    first = Terminal(swarm_folder, *join)
    shown = first.wait_for("1/60")
    for part in ("small, a text-to-image model of 3.6 million parameters; 60 epochs of 64 samples", "peers/small/ada",
                 "Address: /ip4/127.0.0.1/tcp/", "no other peer is there yet", "Ctrl+C leaves and saves."):  # fmt: skip
        assert part in shown
    second = Terminal(swarm_folder, *join)
    second.wait_for("Ctrl+C only stops watching")
    second.press_ctrl_c()
    shown = second.end()
    assert "This peer runs already" in shown
    assert "Friends: dalle-lib join --run run --name your-name" in shown
    assert "Stopped watching" in shown
    assert first.process.poll() is None
    first.press_ctrl_c()
    shown = first.end()
    assert "^C" not in shown, "it would break the panel"
    assert "Left the run; progress is saved at epoch" in shown
    assert "Go on:   dalle-lib join --run run --name ada --alone --" in shown
    assert not processes_of(swarm_folder)

    folder = swarm_folder / "peers" / "small" / "ada"
    samples = Standing.of(Peer(folder)).totals.samples
    again = Terminal(swarm_folder, *join, "--max-minutes", "0.05")
    assert "going on from epoch" in again.wait_for("Limits:")
    shown = again.end()
    assert "in 2 starts" in shown
    assert Standing.of(Peer(folder)).totals.samples > samples
    assert not is_complete(Peer(folder), card)


@pytest.mark.peers
def test_who_finds_nobody_in_a_finished_run_is_told_that_it_is_complete(mini, swarm_folder):
    card = mini.with_changes(
        optimizer={**mini.optimizer.model_dump(), "warmup_epochs": 1, "total_epochs": 2},
        averaging={**mini.averaging.model_dump(), "target_batch_size": 16},
    )
    with contextlib.closing(LocalSwarm.start(card, swarm_folder / "swarm")) as swarm:
        told = {}
        for name in "ada", "eve":
            join = ("join", "--run", swarm.run, "--name", name, "--host", "127.0.0.1", "--batch-size", "8")
            command = [sys.executable, "-m", "dalle_lib", *join, "--device", "cpu"]
            done = subprocess.run(command, cwd=swarm_folder, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            assert "The run is complete at epoch 2; the model is saved." in done.stdout.splitlines()
            told[name] = done.stderr.splitlines()
        ended, seen_last = time.time(), SwarmStatus.read(swarm.bootstrap.folder)
        while seen_last is None or seen_last.time < ended + STATUS_EVERY_S:
            assert swarm.bootstrap.is_running, swarm.bootstrap.log_tail()
            assert time.time() < ended + 120, seen_last
            time.sleep(0.5)
            seen_last = SwarmStatus.read(swarm.bootstrap.folder)
        assert (seen_last.epoch, seen_last.peers, seen_last.said_complete) == (2, [], True)
    assert told["ada"][-1].startswith("2/2 · loss ")
    assert [COMPLETE in lines for lines in told.values()] == [False, True]
