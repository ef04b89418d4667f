"""The parent of a peer's process: holds the folder's lock, passes on the Hub token, and ends all that the peer forked.

hivemind forks several processes, which would outlive a killed peer and look like one to the others. The supervisor
kills the whole process group as soon as the peer's main process has ended for any reason. It imports nothing heavy.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.process.events import AGAIN, RESTING, STARTED, EventLog, read_events
from dalle_lib.swarm.process.join import (
    ALREADY_RUNNING,
    LEAVE_TIMEOUT_S,
    LOCK,
    PID,
    RESTS,
    SETTINGS,
    STARTS_AGAIN,
    hand_on,
)
from dalle_lib.swarm.process.lending import forget_finish, wish_of
from dalle_lib.swarm.process.listed import delist, enlist
from dalle_lib.swarm.process.month import rests_until
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import SwarmStatus
from dalle_lib.swarm.process.threads import threads_of

LOOK_EVERY_S = 20.0
"""Seconds between two looks at whether a peer that rests is to go on, because the month is over or its count was
changed, or to leave."""
SOON_S = 60.0
"""Seconds after its start in which a peer that loses a part of itself is not started again without an epoch."""
VMSTAT = Path("/proc/vmstat")
KILLED_FOR_MEMORY = "the system had ended it because memory ran out"
KILLED = (
    "was killed (exit code {}): by somebody, or by the system because memory ran out. What it computed since it last "
    "saved is lost; joined again, it goes on from there."
)
UNLISTED = (
    "it is not in the list of your peers on this machine ({}), so `dalle-lib status`, `pause` and the like find it "
    "only where `dalle-lib join` was typed, or by --folder"
)


def main(folder: Path) -> int:
    """Run the peer of `folder` to its end, and return its exit code, or ALREADY_RUNNING if it has one already."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            return _supervise(folder)
    except Timeout:
        return ALREADY_RUNNING


def _supervise(folder: Path) -> int:
    leave = threading.Event()
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, lambda *_: leave.set())
    (folder / PID).write_text(str(os.getpid()))
    SwarmStatus.remove(folder)  # what the start before saw
    with contextlib.suppress(BrokenFile):  # the peer tells of it
        forget_finish(folder)
    events = EventLog(folder)
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
        how = KILLED if code < 0 else "ended with exit code {}."
        events.write("failed", error=f"the peer's process {how.format(code)}", exit_code=code)
    events.write("ended", exit_code=code)
    if code == 0:
        with contextlib.suppress(OSError):  # said when it started; as a link that is left it does no harm
            delist(folder)
    return code


def _tell_start(folder: Path, settings: PeerSettings, events: EventLog, process_id: int) -> None:
    """Write that the peer has started, and list it among those of its user."""
    try:
        enlist(folder)
        why = ""
    except OSError as error:
        why = in_one_line(error)
    events.write(STARTED, pid=process_id, role=settings.role, name=settings.name)
    if why:
        events.write("problem", peer="", problem=UNLISTED.format(why))


def _may_run(folder: Path, settings: PeerSettings, events: EventLog, leave: threading.Event, *, begins: bool) -> bool:
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


def _run_until_whole(folder: Path, settings: PeerSettings, token: str, events: EventLog, leave: threading.Event) -> int:
    """Run the peer's process to its end, and return its exit code.

    It is started again where it has lost a part of itself, or where the system has ended it because memory ran out:
    then with half as many samples at a time. One that loses a part soon after its start, before an epoch has ended,
    would go on so, as would one that is ended with a single sample at a time: these are not started again.
    """
    began, why = time.monotonic(), ""
    while True:
        started, ended_before = time.monotonic(), _ended_for_memory()
        code = _run(folder, settings, token, events, leave, why)
        now, told = time.monotonic(), {event["event"]: event for event in read_events(folder)}
        ran_out = _ended_for_memory() > ended_before
        half = told.get("computing", {}).get("batch", 1) // 2
        if code == -signal.SIGKILL and ran_out and half and not leave.is_set():
            why = KILLED_FOR_MEMORY
        elif code != STARTS_AGAIN:
            return code
        elif leave.is_set():
            return 0
        elif now - started < SOON_S and "epoch" not in told:
            return code
        else:
            why = told.get(AGAIN, {}).get("reason", "it lacked a part of itself")
        if ran_out and half:
            settings, why = replace(settings, batch_size=half), f"{why}; it computes at most {half} at a time now"
        left = settings.max_minutes and settings.max_minutes - (now - began) / 60
        if left is not None and left <= 0:
            return 0
        replace(settings, start_after_s=0.0, max_minutes=left).save(folder / SETTINGS)


def _ended_for_memory() -> int:
    """Return how many processes Linux has ended since it started because memory ran out; 0 where nobody tells."""
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in VMSTAT.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def _run(
    folder: Path, settings: PeerSettings, token: str, events: EventLog, leave: threading.Event, why_again: str = ""
) -> int:
    """Run the peer's process to its end, and return its exit code. `why_again` says why it is started again."""
    child = subprocess.Popen(
        [sys.executable, "-m", "dalle_lib.swarm.peer.main", str(folder)],
        stdin=subprocess.PIPE,
        bufsize=0,
        process_group=0,
        # Threads that wait for each other sleep: beside busy programs, spinning took seven times as long or more.
        env={"OMP_WAIT_POLICY": "passive", **os.environ, "OMP_NUM_THREADS": str(threads_of(settings))},
    )
    try:
        hand_on(token, child)
        _tell_start(folder, settings, events, child.pid)
        if why_again:
            events.write("problem", peer="", problem=f"it was started again, from its saved progress: {why_again}")
        return _end_of(child, leave)
    finally:  # also where events cannot be written, as on a full disk
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end_of(child: subprocess.Popen, leave: threading.Event) -> int:
    """Return the peer's exit code once it has ended; when `leave` is set, it is asked to, and given time."""
    while child.poll() is None and not leave.wait(0.1):
        pass
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
