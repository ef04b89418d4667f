"""The parent of a peer's process: holds the folder's lock, passes on the Hub token, and ends all that the peer forked.

hivemind forks several processes, which would outlive a killed peer and look like one to the others. The supervisor
kills the whole process group as soon as the peer's main process has ended for any reason. It imports nothing heavy.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.process.events import AGAIN, RESTING, STARTED, PatientLog, read_events
from dalle_lib.swarm.process.join import (
    ALREADY_RUNNING,
    CANNOT_WRITE,
    LEAVE_TIMEOUT_S,
    LOCK,
    PID,
    RESTS,
    SETTINGS,
    STARTS_AGAIN,
    hand_on,
)
from dalle_lib.swarm.process.killed_for_memory import Memory, when_workers_were_killed
from dalle_lib.swarm.process.lending import forget_finish, wish_of
from dalle_lib.swarm.process.listed import delist, enlist
from dalle_lib.swarm.process.month import rests_until
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.signals import set_when_asked
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.swarm.process.threads import threads_of

LOOK_EVERY_S = 20.0
"""Seconds between two looks at whether a peer that rests is to go on, because the month is over or its count was
changed, or to leave."""
SOON_S = 60.0
"""Seconds after its start in which a peer that loses a part of itself is not started again without an epoch."""
AGAIN_AN_HOUR = 6
"""Starts within an hour of a peer that loses parts, or is ended for memory: enough to go from 64 samples to 1."""
WAITS_S = 60.0
"""Seconds by which it waits longer before each of them: the others wait for it in each round that fails."""
SHORTLY_S = {-signal.SIGKILL: 10.0, STARTS_AGAIN: 200.0}
"""Seconds before a peer's end within which the system must have ended a process for memory to be the reason, by the
exit code: one that lacks a part first saves its progress."""
KILLED_FOR_MEMORY = "the system had ended it because memory ran out"
KILLED = (
    "was killed (exit code {}): by somebody, or by the system because memory ran out. What it computed since it last "
    "saved is lost; joined again, it goes on from there."
)
UNTOLD = "{}: so nobody is told that the peer's process ended with exit code {}"
UNLISTED = (
    "it is not in the list of your peers on this machine ({}), so `dalle-lib status`, `pause` and the like find it "
    "only where `dalle-lib join` was typed, or by --folder"
)


def main(folder: Path) -> int:
    """Run the peer of `folder` to its end, and return its exit code; ALREADY_RUNNING if it has one already.

    Where its events cannot be written at the end, CANNOT_WRITE: nobody else would say how it ended.
    """
    try:
        with FileLock(folder / LOCK, timeout=0):
            return _supervise(folder)
    except Timeout:
        return ALREADY_RUNNING


def _supervise(folder: Path) -> int:
    leave = threading.Event()
    set_when_asked(leave)
    (folder / PID).write_text(str(os.getpid()))
    with contextlib.suppress(BrokenFile):  # the peer tells of it
        forget_finish(folder)
    events = PatientLog(folder)
    settings = PeerSettings.load(folder / SETTINGS)
    token = sys.stdin.readline().strip() if follows_stdin() and not sys.stdin.isatty() else ""
    if follows_stdin():
        threading.Thread(target=_watch_stdin, args=(leave,), daemon=True).start()
    code = None
    while code in (None, RESTS) and _may_run(folder, settings, events, leave, begins=code is None):
        code = _run_until_whole(folder, settings, token, events, leave)
        if code == RESTS and settings.max_minutes is not None:
            break  # its minutes would be over long before the month is
    code = 0 if code in (None, RESTS) else code  # it was told to leave while it rested, or does not rest
    if code != 0:
        events.write("failed", error=_how_it_ended(folder, code), exit_code=code)
    events.write("ended", exit_code=code)
    if code == 0:
        with contextlib.suppress(OSError):  # said when it started; as a link that is left it does no harm
            delist(folder)
    if events.keeps_from_writing is not None:
        with contextlib.suppress(OSError):  # where this goes, there may be no room either: then the code says it alone
            os.write(sys.stderr.fileno(), f"{UNTOLD.format(in_one_line(events.keeps_from_writing), code)}\n".encode())
        return CANNOT_WRITE
    return code


def _how_it_ended(folder: Path, code: int) -> str:
    if code == STARTS_AGAIN:
        told = {event["event"]: event for event in read_events(folder)}
        return f"the peer was not started again, because that was too soon or too often: {_lost_part(told)}"
    return f"the peer's process {(KILLED if code < 0 else 'ended with exit code {}.').format(code)}"


def _tell_start(
    folder: Path,
    settings: PeerSettings,
    events: PatientLog,
    process_id: int,
    changed: Mapping[str, float] | None = None,
) -> None:
    """Write that the peer has started, and list it among those of its user. Raises OSError if that cannot be written.

    What follows would be taken for events of the start before.
    """
    SwarmStatus.remove(folder)  # what the start before saw
    try:
        enlist(folder)
        why = ""
    except OSError as error:
        why = in_one_line(error)
    events.write(STARTED, pid=process_id, role=settings.role, name=settings.name, changed=changed or {})
    if events.keeps_from_writing is not None:
        raise events.keeps_from_writing
    if why:
        events.write("problem", peer="", problem=UNLISTED.format(why))


def _may_run(folder: Path, settings: PeerSettings, events: PatientLog, leave: threading.Event, *, begins: bool) -> bool:
    """Return when the peer may run: at once, or when the month is over whose traffic is used.

    It is false if the peer was told to leave, or asked to finish, meanwhile. `begins` says that it has not run before.
    """
    told = None
    while (until := _rests_until(settings)) is not None and not (leave.is_set() or _is_to_finish(folder)):
        if told is None and begins:
            _tell_start(folder, settings, events, os.getpid())
        if until != told:
            told = until
            events.write(RESTING, until=until)
            SwarmStatus.remove(folder)
        leave.wait(LOOK_EVERY_S)
    return until is None


def _is_to_finish(folder: Path) -> bool:
    try:
        wish = wish_of(folder)
    except BrokenFile:  # the peer tells of it
        return False
    return wish is not None and wish.wish == "finish"


def _rests_until(settings: PeerSettings) -> float | None:
    try:
        rests = settings.role == "trainer" and settings.max_minutes is None
        return rests_until(settings.monthly_gb if rests else None)
    except (BrokenFile, OSError):  # the peer tells of it
        return None


def _run_until_whole(
    folder: Path, settings: PeerSettings, token: str, events: PatientLog, leave: threading.Event
) -> int:
    """Run the peer's process to its end, and return its exit code.

    It is started again where it has lost a part of itself, or where the system has ended it because memory ran out:
    then with half as many samples at a time. One that loses a part soon after its start, before an epoch has ended,
    would go on so, as would one that has been started again AGAIN_AN_HOUR times within an hour, or is ended with a
    single sample at a time: these are not started again.
    """
    ends_at = settings.ends_at(time.time() + settings.start_after_s)
    changed, why, again = {}, "", []
    while True:
        started = time.monotonic()
        code, ran_out = _run(folder, settings, token, events, leave, changed, why)
        if leave.is_set():
            return 0 if code == STARTS_AGAIN else code
        told, now = {event["event"]: event for event in read_events(folder)}, time.monotonic()
        half = told.get("computing", {}).get("batch", 1) // 2 if ran_out else 0
        is_soon = code == STARTS_AGAIN and now - started < SOON_S and "epoch" not in told
        again = [*(at for at in again if now - at < 3600), now]
        if not (code == STARTS_AGAIN or (code == -signal.SIGKILL and half)) or is_soon or len(again) > AGAIN_AN_HOUR:
            return code
        why = KILLED_FOR_MEMORY if code != STARTS_AGAIN else _lost_part(told)
        wait_s = WAITS_S * (len(again) - 1)
        if (left_s := ends_at - time.time() - wait_s) <= 0 or _waits(wait_s, why, events, leave):
            return 0
        changed |= {"start_after_s": 0.0}
        if half:
            changed["batch_size"], why = half, f"{why}; it computes at most {half} at a time now"
        if settings.max_minutes is not None:
            changed["max_minutes"] = left_s / 60


def _waits(seconds: float, why: str, events: PatientLog, leave: threading.Event) -> bool:
    """Wait before a peer is started again, and tell until when; return whether it is to leave."""
    if seconds > 0:
        events.write(AGAIN, reason=why, until=time.time() + seconds)
        problem = f"it is started again in {seconds:.0f} s, as that happens often: {why}"
        events.write("problem", peer="", problem=problem)
    return leave.wait(seconds)


def _lost_part(told: dict[str, dict]) -> str:
    """Return what a peer that lacked a part has told of it."""
    return told.get(AGAIN, {}).get("reason", "it lacked a part of itself")


def _run(
    folder: Path,
    settings: PeerSettings,
    token: str,
    events: PatientLog,
    leave: threading.Event,
    changed: dict[str, float],
    why_again: str,
) -> tuple[int, bool]:
    """Run the peer's process to its end; return its exit code, and whether memory ran out shortly before.

    `changed` are settings of this start that are not those of the folder, and `why_again` why it is started again.
    """
    memory = Memory()
    child = subprocess.Popen(
        [sys.executable, "-m", "dalle_lib.swarm.peer.main", str(folder), json.dumps(changed)],
        stdin=subprocess.PIPE,
        bufsize=0,
        process_group=0,
        # Threads that wait for each other sleep: beside busy programs, spinning took seven times as long or more.
        env={"OMP_WAIT_POLICY": "passive", **os.environ, "OMP_NUM_THREADS": str(threads_of(settings))},
    )
    try:
        hand_on(token, child)
        _tell_start(folder, settings, events, child.pid, changed)
        if why_again:
            events.write("problem", peer="", problem=f"it was started again, from its saved progress: {why_again}")
        code = _end_of(child, leave, memory)
        return code, memory.has_run_out(SHORTLY_S.get(code, 0.0), when_workers_were_killed(read_events(folder)))
    finally:  # also where events cannot be written, as on a full disk
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end_of(child: subprocess.Popen, leave: threading.Event, memory: Memory) -> int:
    """Return the peer's exit code once it has ended; when `leave` is set, it is asked to, and given time."""
    looked = time.monotonic()
    while child.poll() is None and not leave.wait(0.1):
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            memory.look()
    child.stdin.close()
    try:
        return child.wait(LEAVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL


def follows_stdin() -> bool:
    """Whether standard input can ask to leave: a pipe or a terminal can, the /dev/null of a service cannot."""
    return sys.stdin is not None and (sys.stdin.isatty() or not os.path.samefile("/dev/null", "/dev/stdin"))


def _watch_stdin(leave: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            break
    leave.set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
