"""What a peer's process promises, tried with real processes; most are bootstrap peers, which start fastest."""

import itertools
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import psutil
import pytest
from conftest import living, processes_of
from filelock import FileLock

from dalle_lib.dashboard.watching import watch
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.streaming import Manifest, read_codes, write_codes
from dalle_lib.swarm import CannotJoin, Crew, Peer, PeerFailed, PeerSettings, join
from dalle_lib.swarm.process.events import EventLog, read_events

TOKEN = "hf_madeUpForThisTest"
STAYS = "import time; time.sleep(600)"
PARENT = """
import sys, time
from dalle_lib.swarm import PeerSettings, join
peer = join(PeerSettings(run="emoji-mini", role="bootstrap", host="127.0.0.1"), sys.argv[1])
peer.wait_for("connected")
print("ready", flush=True)
time.sleep(600)
"""


def bootstrap(folder) -> Peer:
    peer = join(PeerSettings(run="emoji-mini", role="bootstrap", host="127.0.0.1"), folder)
    peer.wait_for("connected")
    return peer


def supervise(folder, stdin, first_line: str = "") -> subprocess.Popen:
    """Return the supervisor of a connected bootstrap peer, started as a service manager would."""
    PeerSettings(run="emoji-mini", role="bootstrap", host="127.0.0.1").save(folder / "settings.json")
    command = [sys.executable, "-m", "dalle_lib.swarm.process.supervisor", str(folder)]
    supervisor = subprocess.Popen(command, stdin=stdin, bufsize=0, start_new_session=True)
    if first_line:
        supervisor.stdin.write(first_line.encode())
    deadline = time.monotonic() + 60
    while not read_events(folder):
        assert supervisor.poll() is None
        assert time.monotonic() < deadline, "it has not started its peer"
        time.sleep(0.05)
    Peer(folder).wait_for("connected")
    return supervisor


def files_with(text: str, folder) -> list:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


def all_ended(folder, timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes_of(folder)


def test_it_leaves_when_asked_and_nothing_of_it_stays(swarm_folder):
    peer = bootstrap(swarm_folder)
    assert peer.is_running
    peer.stop()
    assert [event["event"] for event in peer.events()] == ["started", "connected", "ended"]
    assert peer.events()[-1]["exit_code"] == 0
    assert all_ended(swarm_folder)


def test_starting_twice_attaches_to_the_running_one(swarm_folder):
    first = bootstrap(swarm_folder)
    started = first.events()[0]
    second = join(PeerSettings(run="emoji-mini", role="bootstrap", name="other"), swarm_folder)
    assert second == first
    assert second.events()[0] == started
    with pytest.raises(ValueError, match="belongs to run 'emoji-mini'"):
        join(PeerSettings(run="emoji", role="bootstrap"), swarm_folder)
    del first  # as when a notebook cell is run again
    assert second.is_running
    code = "import sys; from dalle_lib.swarm import Peer; from pathlib import Path; Peer(Path(sys.argv[1])).stop()"
    subprocess.run([sys.executable, "-c", code, str(swarm_folder)], check=True, timeout=120)
    assert all_ended(swarm_folder)


def test_it_leaves_when_the_program_that_started_it_is_killed(swarm_folder):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(swarm_folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all_ended(swarm_folder)
    assert read_events(swarm_folder)[-1]["exit_code"] == 0


@pytest.fixture
def running_crew(tmp_path) -> Iterator[tuple[Crew, list[FileLock]]]:
    """Two peers that seem to run and do not leave when asked, and their locks, which a test releases to end them."""
    crew = Crew(tmp_path, "emoji-mini", {name: Peer(tmp_path / name) for name in ("ada", "ada-2")})
    locks = []
    with ExitStack() as ends:
        for peer in crew.peers.values():
            peer.folder.mkdir()
            asked = ends.enter_context(subprocess.Popen([sys.executable, "-c", STAYS, peer.folder]))
            ends.callback(asked.kill)
            (peer.folder / "supervisor.pid").write_text(str(asked.pid))
            locks.append(FileLock(peer.folder / "peer.lock", thread_local=False))
            locks[-1].acquire()
        yield crew, locks


def test_waiting_has_no_limit_unless_one_is_given(running_crew, monkeypatch):
    crew, locks = running_crew
    ada = crew.peers["ada"]
    days = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: 86400.0 * next(days))  # a day passes at each look at the clock
    for limited in ada.stop, crew.close, lambda: ada.wait(timeout_s=60), lambda: crew.wait(timeout_s=60):
        with pytest.raises(PeerFailed, match="still runs after"):
            limited()
    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(ada.wait), pool.submit(crew.wait)]
        given_up = wait(waits, timeout=1.0).done
        for lock in locks:
            lock.release()
        assert [waited.result(60) for waited in waits] == [None, None]
        assert not given_up


def test_a_crew_is_waited_for_though_one_of_its_peers_failed_which_is_logged_at_once(running_crew, caplog):
    crew, locks = running_crew
    crew.peers = dict(reversed(crew.peers.items()))  # the one that still runs comes first
    EventLog(crew.peers["ada"].folder).write("failed", error="its GPU broke")
    locks[0].release()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(crew.wait)
        deadline = time.monotonic() + 60
        while not (is_logged := "its GPU broke" in caplog.text) and time.monotonic() < deadline:
            time.sleep(0.05)
        given_up = wait([waiting], timeout=0.5).done
        locks[1].release()
        with pytest.raises(PeerFailed, match="its GPU broke"):
            waiting.result(60)
        assert not given_up, "the other one still ran"
    assert is_logged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_on_a_signal(swarm_folder, number):
    peer = bootstrap(swarm_folder)
    os.kill(int((swarm_folder / "supervisor.pid").read_text()), number)
    peer.wait(timeout_s=120)
    assert peer.events()[-1]["exit_code"] == 0


def test_killing_its_main_process_leaves_no_forks(swarm_folder):
    peer = bootstrap(swarm_folder)
    pid = peer.events()[0]["pid"]
    forks = psutil.Process(pid).children(recursive=True)
    assert forks
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PeerFailed, match="exit code -9"):
        peer.wait(timeout_s=120)
    assert all_ended(swarm_folder)
    assert not living(forks)


def test_killing_its_supervisor_makes_it_leave(swarm_folder):
    bootstrap(swarm_folder)
    os.kill(int((swarm_folder / "supervisor.pid").read_text()), signal.SIGKILL)
    assert all_ended(swarm_folder)


def test_the_stop_button_makes_it_leave(swarm_folder, monkeypatch):
    peer = bootstrap(swarm_folder)
    sleep, calls = time.sleep, []

    def interrupt_once(seconds):
        calls.append(seconds)
        if len(calls) == 1:
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr("dalle_lib.dashboard.watching.time.sleep", interrupt_once)
    watch(peer)
    assert not peer.is_running
    assert peer.events()[-1] == {**peer.events()[-1], "event": "ended", "exit_code": 0}


def test_a_hub_token_reaches_the_peer_and_is_stored_nowhere(swarm_folder, mini, hub, monkeypatch):
    hub.add("owner/secret", {"run.json": mini.model_dump_json().encode()}, private=True)
    hub.users[TOKEN] = User("owner")
    monkeypatch.setenv("HF_TOKEN", TOKEN)  # as some shells and platforms do; the peer's processes do not inherit it
    settings = PeerSettings(run="owner/secret", role="bootstrap", host="127.0.0.1")
    peer = join(settings, swarm_folder / "peer", f"{TOKEN}\n")
    peer.wait_for("connected")
    supervisor = psutil.Process(int((peer.folder / "supervisor.pid").read_text()))
    processes = [supervisor, *supervisor.children(recursive=True)]
    assert {"p2pd"} < {process.name() for process in processes}
    assert not [process for process in processes if TOKEN in f"{process.cmdline()} {process.environ()}"]
    assert not files_with(TOKEN, swarm_folder)
    peer.stop()
    assert not files_with(TOKEN, swarm_folder)


def test_a_private_run_with_a_wrong_hub_token_fails_and_does_not_show_it(swarm_folder, mini, hub):
    hub.add("owner/secret", {"run.json": mini.model_dump_json().encode()}, private=True)
    hub.users[TOKEN] = User("owner")
    settings = PeerSettings(run="owner/secret", role="bootstrap", host="127.0.0.1")
    with pytest.raises(ValueError, match="needs a Hub token that can read it"):
        join(settings, swarm_folder / "peer", "hf_ofSomebodyElse")
    assert not (swarm_folder / "peer").exists()


def test_what_cannot_be_a_hub_token_is_refused_and_not_shown(swarm_folder):
    for token in "hf_one\nstop", "hf_one two", "hf_ünique":
        with pytest.raises(ValueError, match="copy it again") as refused:
            join(PeerSettings(run="emoji-mini"), swarm_folder, token)
        assert "hf_" not in str(refused.value)


def test_asked_to_leave_while_it_loads_it_ends_without_joining(swarm_folder):
    peer = join(PeerSettings(run="emoji-mini", host="127.0.0.1"), swarm_folder)
    peer.stop()
    assert {event["event"] for event in read_events(swarm_folder)} <= {"started", "loaded", "ended"}


@pytest.mark.parametrize("says_stop", [True, False])
def test_after_the_hub_token_its_standard_input_is_the_leash(swarm_folder, says_stop):
    supervisor = supervise(swarm_folder, subprocess.PIPE, f"{TOKEN}\n")
    if says_stop:
        supervisor.stdin.write(b"stop\n")
    else:
        supervisor.stdin.close()
    assert supervisor.wait(60) == 0
    supervisor.stdin.close()
    assert [event["event"] for event in read_events(swarm_folder)] == ["started", "connected", "ended"]


def test_a_service_needs_no_hub_token_and_leaves_on_a_signal(swarm_folder):
    supervisor = supervise(swarm_folder, subprocess.DEVNULL)
    time.sleep(0.5)
    assert supervisor.poll() is None
    supervisor.terminate()
    assert supervisor.wait(60) == 0


def test_on_a_terminal_it_needs_no_hub_token_and_leaves_when_told(swarm_folder):
    ours, theirs = pty.openpty()
    supervisor = supervise(swarm_folder, theirs)
    os.write(ours, b"stop\n")
    assert supervisor.wait(60) == 0
    os.close(ours)
    os.close(theirs)


def test_a_crash_is_shown_with_the_end_of_the_log(mini, swarm_folder):
    run = mini.save(swarm_folder / "run")
    file, codes_format = run / mini.data.train / "codes.parquet", mini.data.format
    write_codes(file, read_codes(file, codes_format)[:32], codes_format)  # which a few steps have gone through
    manifest = Manifest.of_folder(file.parent, codes_format)
    manifest.save(file.parent)
    mini.in_folder(run).with_changes(data={**mini.data.model_dump(), "manifest": manifest.sha256}).save(run)
    peer = join(PeerSettings(run=str(run), host="127.0.0.1", alone=True), swarm_folder / "peer")
    peer.wait_for("joined")
    file.write_bytes(b"no captions and codes")
    told = r"(?s)^ValueError: no readable row .*The log of .* ends:.*stream\.py"
    with pytest.raises(PeerFailed, match=told) as failed:
        peer.wait(timeout_s=300)
    assert not isinstance(failed.value, CannotJoin)
