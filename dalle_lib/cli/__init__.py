"""The command line: `dalle-lib demo`, `join`, `status`, `pause`, `resume`, `finish`, `stop`, `id`, `receipt`,
`generate`, `prepare`, `run`, `runs`, `monitor`, `replay`, `memory`, `doctor`, `auth-server` and `convert-vqgan`.

Each command is a dataclass in a module of its own; its fields are its options. It imports what it needs when it runs,
so --help is quick.
"""

import errno
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import make_dataclass
from inspect import getdoc
from io import TextIOWrapper
from typing import Annotated, Any, Union, get_args, get_type_hints

import tyro

from dalle_lib import __version__
from dalle_lib.cli.auth_server import AuthServer
from dalle_lib.cli.convert_vqgan import ConvertVqgan
from dalle_lib.cli.demo import Demo
from dalle_lib.cli.doctor import Doctor
from dalle_lib.cli.generate import Generate
from dalle_lib.cli.id import Id
from dalle_lib.cli.join import Join
from dalle_lib.cli.lend import Finish, Pause, Resume, Stop
from dalle_lib.cli.memory import Memory
from dalle_lib.cli.monitor import Monitor
from dalle_lib.cli.prepare import Prepare
from dalle_lib.cli.receipt import Receipt
from dalle_lib.cli.replay import Replay
from dalle_lib.cli.run import Run
from dalle_lib.cli.runs import Runs
from dalle_lib.cli.status import Status
from dalle_lib.files import is_disk_full
from dalle_lib.one_line import in_one_line, printable, told

EXTRAS = {
    "hivemind": "swarm",
    "cryptography": "swarm",
    "altair": "notebooks",
    "nbconvert": "notebooks",
} | dict.fromkeys(("fastapi", "uvicorn", "prometheus_client", "segno"), "server")
"""The part of the kit that brings a package that not every command needs; "inference" brings all others."""


COMMANDS = {
    "demo": Demo,
    "join": Join,
    "status": Status,
    "pause": Pause,
    "resume": Resume,
    "finish": Finish,
    "stop": Stop,
    "id": Id,
    "receipt": Receipt,
    "generate": Generate,
    "prepare": Prepare,
    "run": Run,
    "runs": Runs,
    "monitor": Monitor,
    "replay": Replay,
    "memory": Memory,
    "doctor": Doctor,
    "auth-server": AuthServer,
    "convert-vqgan": ConvertVqgan,
}
MISTAKE, FAILURE, STOPPED = 2, 1, 130
"""Exit codes of a command that does not do what it is asked: `main` says which is for what."""
MISTAKES = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors that say that what was typed, or a file that it names, cannot be used."""
MISTAKES_BY_NUMBER = (errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)
"""The same, for errors of the operating system that have no type of their own."""
FAILURES = (RuntimeError, OSError, FloatingPointError, ImportError, MemoryError)
"""Errors that say that something failed though it could have been done."""
DEBUG = "--debug"
"""The option of every command that shows the traceback of an error."""
ABOUT_DEBUG = f"With `{DEBUG}`, a command that ends with an error shows its traceback."
DESCRIPTION = f"""Train a text-to-image model together, and draw with it. For example:

dalle-lib generate "penguin on a yellow background"

dalle-lib join --run owner/name --name ada

`dalle-lib COMMAND --help` tells what a command does, with more examples, and `dalle-lib --version` the version.

{ABOUT_DEBUG}"""


def main() -> None:
    """Run the command that the arguments name; whatever goes wrong ends it with one line on standard error.

    The exit code says whose turn it is:

    - 0: done.
    - 2, a mistake: what was typed, or a file or folder that it names, cannot be used. The line says what was expected.
    - 1, a failure: a peer or a run failed, the network or another machine is away, something that is needed is not
      installed, the disk is full; or the kit itself has a fault, and then the line says so.
    - 130: stopped by Ctrl+C.

    With `--debug`, the traceback comes before the line. Output that nobody reads any more, as after `| head`, ends a
    command silently, with code 1. Letters that the output's encoding lacks become question marks.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            _run()
        finally:
            if sys.stdout is not None:  # as after `>&-`
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        sys.exit(FAILURE)


def _run() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    if arguments in (["--version"], ["-V"]):
        print(f"dalle-lib {__version__}")
        return
    try:
        tyro.cli(_commands(arguments), prog="dalle-lib", description=DESCRIPTION, args=arguments).run()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        over = "\r\x1b[K" if sys.stderr.isatty() else ""  # what is in this line: "^C", or how far a drawing is
        print(f"{over}dalle-lib: stopped.", file=sys.stderr)
        sys.exit(STOPPED)
    except Exception as error:  # no error leaves a reader with a traceback who did not ask for it
        if DEBUG in sys.argv[1:]:
            traceback.print_exc()
        print(f"dalle-lib: {told(_told(error))}", file=sys.stderr)
        sys.exit(MISTAKE if _is_mistake(error) else FAILURE)


def _is_mistake(error: Exception) -> bool:
    return isinstance(error, MISTAKES) or getattr(error, "errno", None) in MISTAKES_BY_NUMBER


def _commands(arguments: list[str], commands: Mapping[str, type] = COMMANDS):
    """Return the commands as one type for tyro; in a list of all of them, each has the first line of its help."""
    is_list = arguments[:1] in ([], ["-h"], ["--help"])
    described = [
        Annotated[
            Any,
            tyro.conf.subcommand(
                name,
                constructor=_of_several(command, arguments[1:]),
                description=getdoc(command).splitlines()[0] if is_list else f"{getdoc(command)}\n\n{ABOUT_DEBUG}",
            ),
        ]
        for name, command in commands.items()
    ]
    return Union[tuple(described)]  # noqa: UP007 (there is no `|` of a list of types)


def several(command: type) -> dict[str, type]:
    """Return the commands of `dalle-lib run ...` and the like, by name; none for a command of its own."""
    hint = get_type_hints(command, include_extras=True).get("command")
    return {about.name: kind for kind, about in map(get_args, get_args(get_args(hint)[0]))} if hint else {}


def _of_several(command: type, arguments: list[str]) -> type:
    """Return a command as it is, but one of several with the list of these as `_commands` describes them."""
    if not (commands := several(command)):
        return command
    chosen = Annotated[_commands(arguments, commands), tyro.conf.arg(name="")]
    return make_dataclass(command.__name__, [("command", chosen)], bases=(command,), frozen=True)


def _told(error: Exception) -> str:
    """Return an error as one line. That of a peer which crashed is its first line: the log's end was shown before."""
    from dalle_lib.swarm import PeerFailed

    if isinstance(error, PeerFailed):
        return printable(str(error).splitlines()[0])
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("dalle_lib"):
        extra = EXTRAS.get(error.name.split(".")[0], "inference")
        return f'{in_one_line(error)}: pip install "dalle-lib[{extra}]"'
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return printable(f"{error.filename}: {error.strerror}. Is this the right path, and may this program use it?")
    if is_disk_full(error):
        return f"{in_one_line(error)}: make room on the disk, or name a folder on another one."
    if isinstance(error, (*MISTAKES, *FAILURES)):
        return in_one_line(error)
    return (
        f"{type(error).__name__}: {in_one_line(error)}. This is a fault of dalle-lib: the same command with {DEBUG} "
        "shows where, for a report."
    )
