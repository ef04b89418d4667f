"""A peer as a process of its own: start it, follow it, make it leave.

A peer runs under a supervisor (`dalle_lib.swarm.process.supervisor`) in a session of its own. The pipe to the
supervisor's standard input is the peer's leash: a line `stop`, or the end of the pipe for any reason, makes the peer
leave cleanly. So a peer never outlives the program that started it, and it survives a crashed thread or a stopped cell
of a notebook.

The first line on that pipe is a Hub token, or empty. The Hub token is in no file, argument or environment variable,
where others could read it. A supervisor whose standard input is a terminal or /dev/null expects no such line.
"""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.files import end_of
from dalle_lib.one_line import in_one_line, printable_lines
from dalle_lib.swarm.process.events import EVENTS, has_start, read_events
from dalle_lib.swarm.process.folder import SETTINGS, bind, require_own
from dalle_lib.swarm.process.settings import PeerSettings

if TYPE_CHECKING:
    from dalle_lib.run import RunCard

LOCK = "peer.lock"
LOG = "peer.log"
OUTPUT = "output.txt"
PID = "supervisor.pid"
ALREADY_RUNNING = 75
"""Exit code of a supervisor whose folder another one has: EX_TEMPFAIL of sysexits.h."""
CANNOT_WRITE = 74
"""Exit code of a supervisor that could not write how its peer ended: EX_IOERR of sysexits.h."""
RESTS = 76
"""Exit code of a peer's process that has left until the next month: its supervisor starts another one then."""
STARTS_AGAIN = 77
"""Exit code of a peer's process that lacks a part of itself: its supervisor starts another one."""
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables in which huggingface_hub looks for a Hub token; a peer that is given one inherits neither."""
PID_TIMEOUT_S = 5.0
"""Seconds in which a supervisor that has locked its folder must have written its process id there."""
LEAVE_TIMEOUT_S = 60.0
"""Seconds after which a supervisor kills a peer that was asked to leave."""
STOP_TIMEOUT_S = 1.5 * LEAVE_TIMEOUT_S
"""Seconds after which a peer that was asked to leave must have ended."""

UNTOLD_END = (
    "the peer in {} has ended with exit code {} and no word of how, as where the disk is full, fails or is read-only. "
    "What it computed since it last saved is lost. Free some space, check the disk, or name another --folder."
)

# A leash must outlive the variable that a cell of a notebook overwrites, or running the cell again would end the peer.
_LEASHES: dict[Path, subprocess.Popen] = {}


class PeerFailed(RuntimeError):
    """A peer's process ended with an error."""


class CannotJoin(PeerFailed):
    """A peer found that it cannot take part, for a reason that its volunteer or organiser can mend: one line."""


class NotAMember(CannotJoin, ValueError):
    """A peer's identity or access token does not let it take part: a mistake, which its volunteer can mend."""


@dataclass(frozen=True, init=False)
class Peer:
    """A running or finished peer, known by its folder."""

    folder: Path

    def __init__(self, folder: str | Path) -> None:
        object.__setattr__(self, "folder", Path(folder))

    @property
    def is_running(self) -> bool:
        """Whether its process holds the folder's lock.

        Whoever may read the lock can ask, without changing anything, and takes nobody else who asks for the peer.
        Raises OSError if it cannot be read.
        """
        import fcntl  # Windows, where no peer can run, has none

        try:
            lock = os.open(self.folder / LOCK, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @property
    def is_ours(self) -> bool:
        """Whether this program started it, and so decides when it leaves."""
        return self.folder.resolve() in _LEASHES

    @property
    def supervisor_id(self) -> int:
        """Id of the process under which its processes run, or ran. Raises OSError or ValueError if it is not known."""
        return int((self.folder / PID).read_text())

    def events(self) -> list[dict]:
        """Return the events that it has written since it last started, oldest first."""
        return read_events(self.folder)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of its log, or of its standard output if it has no log, as a terminal shows them."""
        for name in LOG, OUTPUT:
            if text := end_of(self.folder / name).strip():
                return printable_lines("\n".join(text.splitlines()[-lines:]))  # others' words are in it, too
        return "(no log)"

    def wait_for(self, event: str, timeout_s: float = 120.0) -> dict:
        """Return the first event of that kind, as soon as it is there.

        Raises CannotJoin if the peer cannot take part, and PeerFailed if it ends without the event, or has not told it
        after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            running = self.is_running
            found = [e for e in self.events() if e["event"] == event]
            if found:
                return found[0]
            if not running:
                self._raise_if_it_cannot_join()
                break
            time.sleep(0.1)
        raise PeerFailed(
            f"expected the peer in {self.folder} to report {event!r}, but it "
            f"{f'has not in {timeout_s:.0f} s' if self.is_running else 'ended'}. Its log ends:\n{self.log_tail()}"
        )

    def ask_to_stop(self) -> None:
        """Ask it to leave, and return at once; a peer that another program starts now is waited for a moment.

        Raises PeerFailed if the folder does not say within `PID_TIMEOUT_S` which process to ask.
        """
        if self.folder.resolve() in _LEASHES:
            _LEASHES[self.folder.resolve()].stdin.close()
        else:
            self._signal_supervisor()

    def _signal_supervisor(self) -> None:
        deadline = time.monotonic() + PID_TIMEOUT_S
        while self.is_running:
            try:
                self._require_supervisor(process_id := self.supervisor_id)
                os.kill(process_id, signal.SIGTERM)
                break
            except (FileNotFoundError, ValueError, ProcessLookupError) as error:
                # It has not written its id yet: there is none, or one of an earlier start.
                if time.monotonic() > deadline:
                    raise PeerFailed(
                        f"expected {self.folder / PID} to name the process that runs the peer, but it names none "
                        f"({in_one_line(error)}). If no peer runs there, end the program that holds {LOCK}."
                    ) from error
            time.sleep(0.05)

    def _require_supervisor(self, process_id: int) -> None:
        """Raise ProcessLookupError if a process is not the supervisor of this folder, whose last argument it is.

        One that has just begun has not written its id yet, and that of one before may be any other's by now. One that
        runs on another machine with the same home has written an id that is any other's here.
        """
        import psutil  # the supervisor imports this module, and stays small

        try:
            process = psutil.Process(process_id)
            *_, last = process.cmdline() or [""]  # one that has ended has none
        except (psutil.ZombieProcess, psutil.AccessDenied):  # ended, or somebody else's: the signal does no harm
            return
        except psutil.NoSuchProcess as gone:
            raise ProcessLookupError(str(gone)) from gone
        if last and Path(last).resolve() != self.folder.resolve():
            raise ProcessLookupError(f"process {process_id} is another program")

    def stop(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """Ask it to leave, and return when it has. Raises PeerFailed as `wait` does."""
        self.ask_to_stop()
        self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when it has ended: when the run is complete, when it is stopped, or when its time limit is over.

        Raises CannotJoin if it could not take part, and PeerFailed if it ended by an error, or still runs after
        `timeout_s` seconds; None waits without a limit.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > deadline:
                raise PeerFailed(f"the peer in {self.folder} still runs after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)
        code = _release(self.folder.resolve())
        self._raise_if_it_cannot_join()
        failures = [e for e in self.events() if e["event"] == "failed"]
        if failures:
            raise PeerFailed(f"{failures[0]['error']}\nThe log of {self.folder} ends:\n{self.log_tail()}")
        if code > 0 and not any(event["event"] == "ended" for event in self.events()):
            raise PeerFailed(UNTOLD_END.format(self.folder, code))

    def _raise_if_it_cannot_join(self) -> None:
        for event in self.events():
            if event["event"] == "failed" and event.get("cannot_join"):
                raise (NotAMember if event.get("not_a_member") else CannotJoin)(event["error"])


def join(settings: PeerSettings, folder: str | Path, token: str | None = None, card: "RunCard | None" = None) -> Peer:
    """Start a peer in `folder`, or return the one that already runs there, which keeps the Hub token it started with.

    This returns when the peer's process has started; `Peer.wait_for` waits for what it does next. `token` is a
    Hub token that can read the run and its data, if they are private; `card` is the run's card, if it has been loaded.
    Raises ValueError if that cannot be a Hub token, if there is no such run, or if the folder belongs to another run,
    and changes nothing in the folder then. Raises CannotJoin if nothing can be written there.
    """
    token = (token or "").strip()
    if not re.fullmatch("[!-~]*", token):
        raise ValueError(
            "expected a Hub token of one word, but this one holds spaces or unusual characters: copy it again."
        )
    from dalle_lib.run import RunCard  # the supervisor imports this module, and stays small

    folder, card = Path(folder).resolve(), card or RunCard.load(settings.run, token or None)
    require_own(folder, card)
    if (peer := Peer(folder)).is_running:
        return peer
    _release(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        bind(folder, card)
        settings.save(folder / SETTINGS)
    except OSError as error:
        raise CannotJoin(
            f"this peer cannot keep its progress in {folder}: {error.strerror}. Name another --folder."
        ) from error
    events = folder / EVENTS
    size_before = events.stat().st_size if events.exists() else 0
    process = _LEASHES[folder] = _start_supervisor(folder, token)
    hand_on(token, process)

    def has_begun() -> bool:
        with contextlib.suppress(OSError, ValueError):  # nothing is written yet
            return has_start(folder, size_before) and peer.supervisor_id == process.pid
        return False

    while process.poll() is None and not has_begun():
        time.sleep(0.02)
    if process.poll() not in (None, 0, ALREADY_RUNNING) and not has_begun():
        said = end_of(folder / OUTPUT).strip().splitlines() or ["nothing"]
        free_mb = shutil.disk_usage(folder).free / 1e6
        raise CannotJoin(
            f"this peer could not write to {events}, and ended. {free_mb:,.1f} MB are free there; free some, or name "
            f"another --folder. The last that it said: {said[-1]}"
        )
    if process.poll() == ALREADY_RUNNING:  # another program has started it at the same moment, and has its leash
        _release(folder)
    return peer


def _start_supervisor(folder: Path, token: str) -> subprocess.Popen:
    hidden = {*_HUB_TOKENS, token} if token else set()
    with open(folder / OUTPUT, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "dalle_lib.swarm.process.supervisor", str(folder)],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not {name, value.strip()} & hidden},
        )


def hand_on(token: str, process: subprocess.Popen) -> None:
    """Write a Hub token, which may be empty, as the first line that a new process reads."""
    with contextlib.suppress(BrokenPipeError):  # it has already ended
        process.stdin.write(f"{token}\n".encode())


def _release(folder: Path) -> int:
    """Forget the leash of a peer that has ended, and return its supervisor's exit code; 0 if this program has none."""
    process = _LEASHES.pop(folder, None)
    if process is None:
        return 0
    process.stdin.close()
    return process.wait()
