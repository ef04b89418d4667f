"""A peer that has lost a process or a thread of itself saves its progress, and its supervisor starts it again."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hivemind.utils.mpfuture import MPFuture
from supervised import supervised
from test_resting import told

from dalle_lib.dashboard.lately import troubles
from dalle_lib.machine import NotEnoughRoom
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.peer import parts
from dalle_lib.swarm.peer.parts import LostPart, living
from dalle_lib.swarm.process.events import EventLog, read_events, read_starts
from dalle_lib.swarm.process.join import STARTS_AGAIN
from dalle_lib.swarm.process.killed_for_memory import WORKER_KILLED
from dalle_lib.swarm.process.supervisor import AGAIN_AN_HOUR
from dalle_lib.troubles import trouble_in


@pytest.fixture
def part():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    yield process
    process.kill()
    process.join()


def test_a_part_that_ends_stops_the_peer_and_is_named(tmp_path, part, monkeypatch):
    monkeypatch.setattr(parts, "LOOK_EVERY_S", 0.05)
    stop = threading.Event()

    @living({"process that averages": part}, EventLog(tmp_path), stop)
    def train() -> None:
        os.kill(part.pid, signal.SIGKILL)
        assert stop.wait(60)
        raise BrokenPipeError("what it does without that part fails")

    with pytest.raises(LostPart, match=r"the process that averages has ended \(exit code -9\)"):
        train()
    (event,) = read_events(tmp_path)
    assert (event["event"], "exit code -9" in event["reason"]) == ("again", True)


def test_a_peer_saves_though_it_waits_for_an_answer_of_a_process_that_is_gone(tmp_path, part, monkeypatch):
    monkeypatch.setattr(parts, "LOOK_EVERY_S", 0.05)
    saved = threading.Event()

    @living({"process that averages": part}, EventLog(tmp_path), threading.Event(), saved)
    def train() -> None:
        part.kill()
        with pytest.raises(Interrupted):
            MPFuture().result(60)  # as hivemind waits for each of its processes
        saved.set()
        raise Interrupted

    with pytest.raises(LostPart):
        train()


@pytest.mark.parametrize(("seconds", "told"), [(600, ""), (0, "it goes on")])
def test_a_peer_that_has_not_begun_leaves_soon_whatever_its_start_waits_for(seconds, told):
    start = f"""
import threading, time
from dalle_lib.swarm.peer import parts
parts.GRACE_S, stop = 0.2, threading.Event()
with parts.nothing_to_save(stop):
    stop.set()
    time.sleep({seconds})
time.sleep(1)
print("it goes on")
"""
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout.strip()) == (0, told), ended.stderr


def test_parts_that_live_or_end_when_the_peer_leaves_stop_nothing(tmp_path, part, monkeypatch):
    monkeypatch.setattr(parts, "LOOK_EVERY_S", 0.05)
    stop = threading.Event()
    with living({"process that averages": part}, EventLog(tmp_path), stop):
        assert not stop.wait(0.5)
        stop.set()
        part.kill()
        part.join()
    with pytest.raises(ValueError, match="its own"), living({}, EventLog(tmp_path), threading.Event()):
        raise ValueError("its own")
    assert not read_events(tmp_path)


def test_a_peer_whose_memory_ran_out_for_more_than_a_batch_is_started_again_though_it_cannot_save(tmp_path):
    stop = threading.Event()

    def train() -> None:
        with living({}, EventLog(tmp_path), stop) as keeper:
            with keeper.again_without_memory():
                raise MemoryError
            assert stop.is_set()
            raise MemoryError("there is none to copy the progress, either")

    with pytest.raises(LostPart, match="memory ran out"):
        train()
    with pytest.raises(NotEnoughRoom), living({}, EventLog(tmp_path), stop) as keeper, keeper.again_without_memory():
        raise NotEnoughRoom("expected room for one sample, but there is none (CUDA out of memory)")
    (event,) = read_events(tmp_path)
    assert (event["event"], "memory ran out" in event["reason"]) == ("again", True)


HANGS = """
import subprocess, sys, threading
from pathlib import Path
from dalle_lib.swarm.peer import parts
from dalle_lib.swarm.process.events import EventLog

class Dead:
    def is_alive(self):
        return False

parts.LOOK_EVERY_S = parts.END_S = 0.05
saved, stop = threading.Event(), threading.Event()
lacks = {"a part": {"thread": Dead()}, "memory": {}}[sys.argv[2]]
with parts.living(lacks, EventLog(Path(sys.argv[1])), stop, saved) as keeper:
    if not lacks:
        with keeper.again_without_memory():
            stop.set()  # as a trainer does when it ends, for whatever reason
            raise MemoryError
    threading.Timer(0.5, lambda: (print("saved", flush=True), saved.set())).start()
    threading.Event().wait()
"""


@pytest.mark.parametrize("lacks", ["a part", "memory"])
def test_a_peer_that_hangs_without_a_part_is_ended_once_it_has_saved(tmp_path, lacks):
    hangs = [sys.executable, "-c", HANGS, tmp_path, lacks]
    done = subprocess.run(hangs, stdout=subprocess.PIPE, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (STARTS_AGAIN, b"saved\n")


def ends_first(folder: Path, code: int, *events: str) -> str:
    """Return a script that writes these events and ends so, but ends well when it runs again."""
    lines = "; ".join(f"echo '{event}' >> {folder}/events.jsonl" for event in events)
    begun = f"until grep -q started {folder}/events.jsonl; do sleep 0.1; done"
    again = f"[ -e {folder}/again ] && exit 0; touch {folder}/again"
    return f'echo "$4" > {folder}/changed; {again}; {begun}; {lines or ":"}; exit {code}'


def is_over(supervisor: subprocess.Popen) -> None:
    """Hand on no Hub token, and wait until the supervisor ends by itself."""
    supervisor.stdin.write("\n")
    supervisor.stdin.flush()
    supervisor.wait(300)
    supervisor.stdin.close()


def test_a_peer_that_lacks_a_part_is_started_again_for_the_minutes_that_are_left_and_says_why(tmp_path):
    epoch, again = '{"time": 1, "event": "epoch"}', '{"time": 2, "event": "again", "reason": "the thread has ended"}'
    script = ends_first(tmp_path, STARTS_AGAIN, epoch, again)
    supervisor = supervised(tmp_path, script, max_minutes=5.0, start_after_s=3.0)
    is_over(supervisor)
    assert supervisor.returncode == 0
    assert told(tmp_path) == ["started", "epoch", "again", "started", "problem", "ended"]
    (line,) = troubles(read_starts(tmp_path)[-1])
    assert line == "This peer: it was started again, from its saved progress: the thread has ended."
    assert trouble_in(line).title == "Started again"
    chosen = PeerSettings.load(tmp_path / "settings.json")
    assert (chosen.start_after_s, chosen.max_minutes) == (3.0, 5.0), "what its volunteer chose is lost"
    changed = json.loads((tmp_path / "changed").read_text())
    assert (changed["start_after_s"], 4 < changed["max_minutes"] <= 5.05) == (0.0, True)
    assert vars(chosen.of_start(read_events(tmp_path))).items() >= changed.items()


def test_a_peer_whose_minutes_were_over_while_its_computer_slept_is_not_started_again(tmp_path):
    epoch, again = '{"time": 1, "event": "epoch"}', '{"time": 2, "event": "again", "reason": "the thread has ended"}'
    script = ends_first(tmp_path, STARTS_AGAIN, epoch, again)
    supervisor = supervised(tmp_path, script, asleep_s=600, max_minutes=5.0)
    is_over(supervisor)
    assert (supervisor.returncode, told(tmp_path)) == (0, ["started", "epoch", "again", "ended"])


def test_a_peer_that_lacks_a_part_soon_after_its_start_ends_and_says_which(tmp_path):
    again = '{"time": 2, "event": "again", "reason": "the thread has ended"}'
    supervisor = supervised(tmp_path, ends_first(tmp_path, STARTS_AGAIN, again))
    is_over(supervisor)
    assert supervisor.returncode == STARTS_AGAIN
    assert told(tmp_path) == ["started", "again", "failed", "ended"]
    error = read_events(tmp_path)[-2]["error"]
    assert error.endswith("too soon or too often: the thread has ended")
    assert trouble_in(error).title == "Started again"


def test_a_peer_that_lacks_a_part_again_and_again_ends(tmp_path):
    supervisor = supervised(tmp_path, f"exit {STARTS_AGAIN}", soon_s=0)
    is_over(supervisor)
    assert supervisor.returncode == STARTS_AGAIN
    assert told(tmp_path).count("started") == 1 + AGAIN_AN_HOUR
    first, second, *_ = read_starts(tmp_path)
    assert [event["event"] for event in first] == ["started"], "it is started again at once"
    assert [event["event"] for event in second] == ["started", "problem", "again", "problem"]
    (_, line) = troubles(second)
    assert line.startswith("This peer: it is started again in 0 s, as that happens often: it lacked a part")
    assert trouble_in(line).title == "Started again"
    assert second[2]["until"] > second[2]["time"]


def test_a_peer_that_lacks_a_part_and_was_asked_to_leave_has_left(tmp_path):
    supervisor = supervised(tmp_path, ends_first(tmp_path, STARTS_AGAIN))
    supervisor.communicate("\nstop\n", timeout=300)
    assert supervisor.returncode == 0
    assert told(tmp_path) == ["started", "ended"]


@pytest.mark.parametrize(("batch", "starts"), [(8, 2), (1, 1)])
def test_a_peer_that_linux_ends_because_memory_ran_out_goes_on_with_half_as_many_samples(tmp_path, batch, starts):
    vmstat, computing = tmp_path / "vmstat", f'{{"time": 1, "event": "computing", "batch": {batch}}}'
    vmstat.write_text("nr_free_pages 9\noom_kill 3\n")
    ends = f"sed -i s/3/4/ {vmstat}; kill -9 $$"
    supervisor = supervised(tmp_path, ends_first(tmp_path, 1, computing).replace("exit 1", ends), vmstat=vmstat)
    is_over(supervisor)
    assert told(tmp_path).count("started") == starts
    changed = json.loads((tmp_path / "changed").read_text())
    if starts == 1:
        assert (supervisor.returncode, changed) == (-signal.SIGKILL % 256, {})
        return
    assert (supervisor.returncode, changed["batch_size"]) == (0, 4)
    (line,) = troubles(read_starts(tmp_path)[-1])
    assert "because memory ran out; it computes at most 4 at a time now" in line
    assert trouble_in(line).title == "Started again"


def test_a_peer_that_somebody_kills_is_not_started_again_though_memory_ran_out_before(tmp_path):
    (vmstat := tmp_path / "vmstat").write_text("oom_kill 3\n")
    ends = f"sed -i s/3/4/ {vmstat}; sleep 3; kill -9 $$"
    script = ends_first(tmp_path, 1, '{"time": 1, "event": "computing", "batch": 8}').replace("exit 1", ends)
    supervisor = supervised(tmp_path, script, vmstat=vmstat, shortly_s=0.5)
    is_over(supervisor)
    assert told(tmp_path) == ["started", "computing", "failed", "ended"]


@pytest.mark.parametrize(("ended", "starts"), [(1, 1), (2, 2)])
def test_a_worker_that_linux_has_ended_is_not_why_the_peer_ends(tmp_path, ended, starts):
    (vmstat := tmp_path / "vmstat").write_text("oom_kill 3\n")
    dropped = {"time": time.time() + 60, "event": "computing", "batch": 8, "why": f"cuda:1 {WORKER_KILLED}, and starts"}
    dropped = json.dumps(dropped)  # told again when a third peer comes
    ends = f"sed -i s/3/{3 + ended}/ {vmstat}; kill -9 $$"
    supervisor = supervised(tmp_path, ends_first(tmp_path, 1, dropped, dropped).replace("exit 1", ends), vmstat=vmstat)
    is_over(supervisor)
    assert told(tmp_path).count("started") == starts
