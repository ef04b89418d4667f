"""The command line: `dalle-lib demo`, `join`, `status`, `generate`, `memory`, `doctor` and `convert-vqgan`.

Each command is a dataclass in a module of its own; its fields are its options. It imports what it needs when it runs,
so --help is quick.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any, Union

import tyro

from dalle_lib import __version__
from dalle_lib.cli.convert_vqgan import ConvertVqgan
from dalle_lib.cli.demo import Demo
from dalle_lib.cli.doctor import Doctor
from dalle_lib.cli.generate import Generate
from dalle_lib.cli.join import Join
from dalle_lib.cli.memory import Memory
from dalle_lib.cli.status import Status
from dalle_lib.one_line import in_one_line, printable

EXTRAS = {"hivemind": "swarm", "cryptography": "swarm", "altair": "notebooks", "nbconvert": "notebooks"}
"""The part of the kit that brings a package that not every command needs; "inference" brings all others."""


COMMANDS = {
    "demo": Demo,
    "join": Join,
    "status": Status,
    "generate": Generate,
    "memory": Memory,
    "doctor": Doctor,
    "convert-vqgan": ConvertVqgan,
}
DESCRIPTION = """Train a text-to-image model together, and draw with it. For example:

dalle-lib generate "penguin on a yellow background"

dalle-lib join --run owner/name --name ada

`dalle-lib COMMAND --help` tells what a command does, with more examples, and `dalle-lib --version` the version."""


def main() -> None:
    """Run the command that the arguments name; an error that the user can mend ends it with one line and exit code 1.

    Ctrl+C ends it with exit code 130. Output that nobody reads any more, as after `| head`, ends it silently. Letters
    that the output's encoding lacks become question marks.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        sys.exit(1)


def _run() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"dalle-lib {__version__}")
        return
    try:
        tyro.cli(_commands(), prog="dalle-lib", description=DESCRIPTION).run()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        over = "\r\x1b[K" if sys.stderr.isatty() else ""  # what is in this line: "^C", or how far a drawing is
        print(f"{over}dalle-lib: stopped.", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dalle_lib"):
            raise
        extra = EXTRAS.get(error.name.split(".")[0], "inference")
        sys.exit(f'dalle-lib: {in_one_line(error)}: pip install "dalle-lib[{extra}]"')
    except (ValueError, RuntimeError, OSError, FloatingPointError) as error:
        sys.exit(f"dalle-lib: {_told(error)}")


def _commands():
    """Return the commands as one type for tyro; in the list of all of them, each has the first line of its help."""
    is_list = sys.argv[1:2] in ([], ["-h"], ["--help"])
    described = [
        Annotated[
            Any,
            tyro.conf.subcommand(
                name, constructor=command, description=command.__doc__.splitlines()[0] if is_list else None
            ),
        ]
        for name, command in COMMANDS.items()
    ]
    return Union[tuple(described)]  # noqa: UP007 (there is no `|` of a list of types)


def _told(error: Exception) -> str:
    """Return an error as one line. That of a peer which crashed is its first line: the log's end was shown before."""
    from dalle_lib.swarm import PeerFailed

    return printable(str(error).splitlines()[0]) if isinstance(error, PeerFailed) else in_one_line(error)
