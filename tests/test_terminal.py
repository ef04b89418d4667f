"""What a volunteer sees of their peer in a terminal: states in plain words, a line an epoch, one panel, totals."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import processes_of
from filelock import FileLock
from rich.console import Console

from dalle_lib.cli.join import Join, is_complete, limits
from dalle_lib.dashboard import watching
from dalle_lib.dashboard.terminal import Lines, panel
from dalle_lib.dashboard.words import duration, line_of, news, state_in_words, totals_in_words
from dalle_lib.swarm import Peer, PeerSettings
from dalle_lib.swarm.process.folder import bind
from dalle_lib.swarm.process.history import troubles
from dalle_lib.swarm.process.join import LEAVE_TIMEOUT_S
from dalle_lib.swarm.process.standing import Standing
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

STARTED = {"event": "started", "pid": 1}
LOADED = {"event": "loaded", "device": "cpu"}
CONNECTED = {"event": "connected", "addresses": ["/ip4/192.0.2.1/tcp/4321/p2p/id0", "/ip4/127.0.0.1/tcp/4321/p2p/id0"]}
JOINED = {"event": "joined", "epoch": 9, "peer_id": "id0", "name": "ada", "device": "cpu", "idle_gpus": [], "peers": 3}
BEGINNING = [STARTED, LOADED, CONNECTED, JOINED]
LEFT_OUT = {"event": "left_out", "epoch": 9, "samples": 0, "reason": "others are ahead", "counts_in": None}
LEFT_OUT |= {"is_waiting": False}
LEFT = {"event": "left", "epoch": 12, "samples": 300}


def epoch(number: int, samples: int = 96) -> list[dict]:
    """Return the events of an epoch of six seconds in which this peer's gradient was 31% of the update."""
    averaged = {"event": "averaged", "epoch": number - 1, "peers": 3, "shares": {"id0": 0.31, "id1": 0.69}}
    ended = {"event": "epoch", "epoch": number, "loss": 1.43, "samples": samples, "seconds": 6.0, "peers": 3, "lr": 0.1}
    return [averaged | {"error": None, "counted": {"id0": 31.0, "id1": 69.0}}, ended]


def peer_with(folder: Path, events: list[dict], card=None, ago_s: float = 60.0, **settings) -> Peer:
    """Return a peer whose events these are, a second each; the first was `ago_s` seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    PeerSettings(run="emoji-mini", **{"name": "ada", **settings}).save(folder / "settings.json")
    if card is not None:
        bind(folder, card)
    begun = time.time() - ago_s
    lines = [json.dumps({"time": begun + number, **event}) + "\n" for number, event in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(lines))
    return Peer(folder)


@contextmanager
def running(peer: Peer) -> Iterator[Peer]:
    """Make a peer seem to run."""
    with FileLock(peer.folder / "peer.lock"):
        yield peer


def seen(folder: Path, samples: int, at_epoch: int) -> None:
    """Write what a peer sees of its swarm now."""
    others = [
        PeerStatus(peer_id=f"id{i}", name=name, epoch=at_epoch, samples=96, samples_per_s=7.0, loss=1.5)
        for i, name in enumerate(("ada", "bob", "eve"))
    ]
    SwarmStatus(
        time=time.time(), epoch=at_epoch, total_epochs=60, samples_in_epoch=samples, target_batch_size=192, peers=others
    ).write(folder)


@pytest.mark.parametrize(
    ("events", "is_running", "state", "words"),
    [
        ([STARTED], True, "starting", "loading the model"),
        ([STARTED, LOADED], True, "looking", "Looking for the other peers"),
        ([STARTED, LOADED, CONNECTED], True, "catching up", "Catching up with the others"),
        (BEGINNING, True, "training", "Training with the others"),
        ([*BEGINNING, *epoch(10), LEFT_OUT | {"is_waiting": True}], True, "waiting", "Waiting for the others' next"),
        ([*BEGINNING, LEFT_OUT | {"is_waiting": True}, *epoch(10)], True, "training", "Training"),
        ([*BEGINNING, {"event": "leaving", "epoch": 9}], True, "leaving", "Leaving: saving"),
        ([*BEGINNING, LEFT], True, "left", "saved at epoch 12"),
        ([*BEGINNING, LEFT, {"event": "ended", "exit_code": 0}], False, "left", "saved at epoch 12"),
        ([*BEGINNING, LEFT | {"epoch": 60}], False, "complete", "The run is complete at epoch 60"),
        ([*BEGINNING, {"event": "failed", "error": "its GPU broke"}], False, "failed", "error: its GPU broke"),
        (BEGINNING, False, "killed", "Ended without saving"),
        ([STARTED, {"event": "ended", "exit_code": 0}], False, "ended", "Ended"),
    ],
)
def test_each_state_has_plain_words(mini, tmp_path, events, is_running, state, words):
    peer = peer_with(tmp_path, events, mini)
    if is_running:
        with running(peer):
            standing = Standing.of(peer)
    else:
        standing = Standing.of(peer)
    assert standing.state == state
    assert words in state_in_words(standing)


def test_a_peer_that_is_to_start_later_waits_and_a_bootstrap_peer_helps(tmp_path):
    with running(peer_with(tmp_path / "late", [STARTED], start_after_s=600.0)) as peer:
        assert Standing.of(peer).state == "postponed"
    with running(peer_with(tmp_path / "bootstrap", [STARTED, CONNECTED], role="bootstrap")) as peer:
        assert Standing.of(peer).state == "helping"


def test_an_epoch_whose_samples_are_all_computed_is_averaged(mini, tmp_path):
    with running(peer_with(tmp_path, [*BEGINNING, *epoch(10)], mini)) as peer:
        seen(tmp_path, 192, at_epoch=10)
        assert Standing.of(peer).state == "averaging"
        seen(tmp_path, 192, at_epoch=9)  # what it saw before the epoch ended
        assert Standing.of(peer).state == "training"
        seen(tmp_path, 48, at_epoch=10)
        assert Standing.of(peer).done == 0.25


def test_the_line_says_epoch_loss_peers_share_samples_and_time_left(mini, tmp_path):
    earlier = [*BEGINNING, *epoch(3, samples=1500), LEFT | {"samples": 1904}]
    with running(peer_with(tmp_path, [*earlier, *BEGINNING, *epoch(10), *epoch(11), *epoch(12)], mini)) as peer:
        standing = Standing.of(peer)
        assert line_of(standing) == "12/60 · loss 1.43 · 3 peers · yours 31% · 2,192 samples · 5 min left"
    assert "left" not in line_of(Standing.of(peer)), "it does not run any more"


def test_there_is_no_time_left_at_the_end_and_a_limit_of_ones_own_comes_first(mini, tmp_path):
    done = [*BEGINNING, *epoch(59), *epoch(60)]
    for number, (events, is_running) in enumerate([(done, True), ([*done, LEFT | {"epoch": 60}], False)]):
        peer = peer_with(tmp_path / str(number), events, mini)
        if is_running:
            with running(peer):
                assert Standing.of(peer).seconds_left is None
        assert "left" not in line_of(Standing.of(peer))
    with running(peer_with(tmp_path / "limited", [*BEGINNING, *epoch(10), *epoch(11)], mini, max_minutes=3.0)) as peer:
        assert Standing.of(peer).seconds_left == pytest.approx(60 * 3 - 57, abs=10)


def test_totals_are_over_all_starts_of_a_folder(mini, tmp_path):
    first = [*BEGINNING, *epoch(10, 100), *epoch(11, 100), LEFT | {"samples": 230}, {"event": "ended", "exit_code": 0}]
    killed = [*BEGINNING, *epoch(12, 50)]
    with running(peer_with(tmp_path, [*first, *killed, *BEGINNING, *epoch(13, 7)], mini, ago_s=25.0)) as peer:
        totals = Standing.of(peer).totals
        assert (totals.starts, totals.samples, totals.epochs) == (3, 230 + 50 + 7, 4)
        assert totals.seconds == pytest.approx(6 + 2 + 25 - 19, abs=3)
        assert totals_in_words(Standing.of(peer)).startswith("287 samples, 4 epochs, ")
        assert totals_in_words(Standing.of(peer)).endswith("in 3 starts")


def test_what_another_start_saw_of_the_swarm_is_not_shown(mini, tmp_path):
    peer = peer_with(tmp_path, [*BEGINNING, LEFT, *BEGINNING], mini)
    seen(tmp_path, 48, at_epoch=9)
    assert Standing.of(peer).swarm is not None
    peer = peer_with(tmp_path, [*BEGINNING, LEFT, *BEGINNING], mini, ago_s=-60.0)
    assert Standing.of(peer).swarm is None


def test_coming_back_and_a_first_gradient_that_counts_later_are_no_trouble_and_lost_samples_are():
    away = LEFT_OUT | {"reason": "the others are at epoch 30: took over their state"}
    late = LEFT_OUT | {"samples": 32, "counts_in": 10}
    assert troubles([*BEGINNING, away, late, *epoch(10)]) == []
    (lost,) = troubles([*BEGINNING, away | {"samples": 32}, *epoch(10)])
    assert lost.startswith("32 samples of yours are not in the others' update of epoch 9: the others are at epoch 30")


def test_lines_are_printed_once_one_an_epoch(mini, tmp_path):
    file = io.StringIO()
    show = Lines(file)
    for events in BEGINNING, [*BEGINNING, *epoch(10), *epoch(11)], [*BEGINNING, *epoch(10), *epoch(11), *epoch(12)]:
        with running(peer_with(tmp_path, events, mini)) as peer:
            show(peer, "Ctrl+C leaves and saves.")
            show(peer, "Ctrl+C leaves and saves.")
    assert file.getvalue().splitlines() == [
        "Listening on 127.0.0.1:4321, 192.0.2.1:4321.",
        "Joined at epoch 9, found 2 other peers. Computing on cpu.",
        "Ctrl+C leaves and saves.",
        "10/60 · loss 1.43 · 3 peers · yours 31% · 96 samples",
        "11/60 · loss 1.43 · 3 peers · yours 31% · 192 samples · 5 min left",
        "12/60 · loss 1.43 · 3 peers · yours 31% · 288 samples · 5 min left",
    ]


def test_news_tell_who_is_alone_and_who_accepts_no_connections():
    listening, joined = news([CONNECTED | {"addresses": []}, JOINED | {"peers": 1, "idle_gpus": ["cuda:1"]}])
    assert listening == "Connecting out only, accepting no connections."
    assert "no other peer is there yet" in joined
    assert "cuda:1 is idle" in joined


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


def test_times_are_rounded_to_what_matters():
    seconds = 0.4, 59.4, 59.6, 299, 3599, 3 * 3600 + 61, 26 * 3600, 75 * 3600
    told = "0 s", "59 s", "1 min", "5 min", "1 h 0 min", "3 h 1 min", "1 day 2 h", "3 days 3 h"
    assert tuple(map(duration, seconds)) == told


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


def test_limits_and_the_command_to_go_on_name_what_was_given():
    told = limits(PeerSettings(run="r", max_minutes=30.0, duty=0.5, device="cpu"))
    assert all(part in told for part in ("30 minutes", "50% of the time", "1 processor thread", "on cpu"))
    settings = PeerSettings(run="owner/run", name="ada", initial_peers=("/ip4/a", "/ip4/b"), client_mode=True)
    assert Join(peer=settings, folder=Path("here")).as_typed() == [
        *("dalle-lib", "join", "--run", "owner/run", "--name", "ada", "--initial-peers", "/ip4/a", "/ip4/b"),
        *("--client-mode", "--folder", "here"),
    ]
    assert Join(peer=PeerSettings(run="emoji")).as_typed() == ["dalle-lib", "join", "--run", "emoji"]


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
                 "Listening on 127.0.0.1:", "no other peer is there yet", "Ctrl+C leaves and saves."):  # fmt: skip
        assert part in shown
    second = Terminal(swarm_folder, *join)
    second.wait_for("Ctrl+C only stops watching")
    second.press_ctrl_c()
    shown = second.end()
    assert "This peer runs already" in shown
    assert "Stopped watching" in shown
    assert first.process.poll() is None
    first.press_ctrl_c()
    shown = first.end()
    assert "Left the run; progress is saved at epoch" in shown
    assert "Go on:   dalle-lib join --run run --name ada --alone --" in shown
    assert not processes_of(swarm_folder)

    # The run is now said to be shorter than what this folder holds; such a folder needs no peer to be started.
    folder = swarm_folder / "peers" / "small" / "ada"
    samples = Standing.of(Peer(folder)).totals.samples
    again = Terminal(swarm_folder, *join, "--max-minutes", "0.05")
    assert "going on from epoch" in again.wait_for("Limits:")
    shown = again.end()
    assert "in 2 starts" in shown
    assert Standing.of(Peer(folder)).totals.samples > samples
    assert not is_complete(Peer(folder), card)
