"""A peer that another program runs is asked to leave by its process id, also while it has only just started."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from filelock import FileLock
from full_disk import fill_disk
from waiting import wait_until

from dalle_lib.swarm import Peer, PeerFailed, PeerSettings
from dalle_lib.swarm.process import join
from dalle_lib.swarm.process.events import EVENTS


@pytest.fixture(autouse=True)
def _a_busy_machine_has_time_to_name_the_process(monkeypatch):
    monkeypatch.setattr(join, "PID_TIMEOUT_S", 60.0)


@pytest.fixture
def starting(tmp_path) -> Iterator[Peer]:
    """A peer whose supervisor has locked the folder and written nothing yet."""
    with FileLock(tmp_path / "peer.lock"):
        yield Peer(tmp_path)


@pytest.mark.parametrize("stale", [None, "", "ended"])
def test_a_peer_that_starts_now_is_asked_once_its_process_is_known(starting, stale):
    file = starting.folder / "supervisor.pid"
    if stale == "ended":
        with subprocess.Popen([sys.executable, "-c", ""]) as earlier:
            stale = str(earlier.pid)
    if stale is not None:
        file.write_text(stale)
    with subprocess.Popen([sys.executable, "-c", "input()", starting.folder], stdin=subprocess.PIPE) as supervisor:
        threading.Timer(0.3, file.write_text, [str(supervisor.pid)]).start()
        try:
            starting.ask_to_stop()
            assert supervisor.wait(60) == -signal.SIGTERM
        finally:
            supervisor.kill()


def test_a_folder_that_never_names_its_process_is_told(starting, monkeypatch):
    monkeypatch.setattr(join, "PID_TIMEOUT_S", 0.1)
    with pytest.raises(PeerFailed, match=r"expected .*supervisor\.pid to name the process that runs the peer"):
        starting.ask_to_stop()


def test_a_supervisor_names_its_process_first_and_heeds_it(tmp_path):
    PeerSettings(run="emoji-mini", role="bootstrap", host="127.0.0.1").save(tmp_path / "settings.json")
    command = [sys.executable, "-m", "dalle_lib.swarm.process.supervisor", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as supervisor:  # waits for a line
        while not Peer(tmp_path).is_running:
            assert supervisor.poll() is None
            time.sleep(0.01)
        try:
            Peer(tmp_path).ask_to_stop()
            supervisor.stdin.write(b"\n")
            supervisor.stdin.flush()
            assert supervisor.wait(120) == 0
        finally:
            supervisor.kill()


def test_of_two_programs_that_start_a_peer_at_once_the_second_only_watches(tmp_path, monkeypatch):
    start, first = join._start_supervisor, []

    def start_after_another(folder, token):
        first.append(start(folder, token))
        join.hand_on(token, first[0])
        wait_until(lambda: Peer(folder).is_running)
        return start(folder, token)

    monkeypatch.setattr(join, "_start_supervisor", start_after_another)
    peer = join.join(PeerSettings(run="emoji-mini", start_after_s=600), tmp_path)
    try:
        assert peer.is_running
        assert not peer.is_ours, "its Ctrl+C would wait for ever for a peer that it cannot ask to leave"
        peer.stop()
        assert first[0].wait(60) == 0
    finally:
        first[0].stdin.close()


def test_who_has_only_begun_to_write_that_it_starts_has_not_started(swarm_folder, monkeypatch):
    start = join._start_supervisor

    def start_on_a_full_disk(folder, token):
        supervisor = start(folder, token)
        fill_disk(psutil.Process(supervisor.pid), room_bytes=40)  # it waits for the Hub token, and writes nothing yet
        return supervisor

    monkeypatch.setattr(join, "_start_supervisor", start_on_a_full_disk)
    with pytest.raises(join.CannotJoin, match=r"could not write to .*events\.jsonl, and ended"):
        join.join(PeerSettings(run="emoji-mini", host="127.0.0.1"), swarm_folder)
    assert (swarm_folder / EVENTS).stat().st_size == 40
