"""The command line: `dalle-lib demo`, `join`, `status`, `generate`, `memory`, `doctor` and `convert-vqgan`.

Each command is a dataclass in a module of its own; its fields are its options. It imports what it needs when it runs,
so --help is quick.
"""

import sys

import tyro

from dalle_lib import __version__
from dalle_lib.cli.convert_vqgan import ConvertVqgan
from dalle_lib.cli.demo import Demo
from dalle_lib.cli.doctor import Doctor
from dalle_lib.cli.generate import Generate
from dalle_lib.cli.join import Join
from dalle_lib.cli.memory import Memory
from dalle_lib.cli.status import Status
from dalle_lib.one_line import in_one_line

EXTRAS = {"hivemind": "swarm", "cryptography": "swarm", "altair": "notebooks", "nbconvert": "notebooks"}
"""The part of the kit that brings a package that not every command needs; "inference" brings all others."""


def main() -> None:
    """Run the command that the arguments name; an error that the user can mend ends it with one line and exit code 1.

    Ctrl+C ends it with exit code 130.
    """
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"dalle-lib {__version__}")
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {
                "demo": Demo,
                "join": Join,
                "status": Status,
                "generate": Generate,
                "memory": Memory,
                "doctor": Doctor,
                "convert-vqgan": ConvertVqgan,
            },
            prog="dalle-lib",
            description="Train a text-to-image model together, and draw with it. `dalle-lib --version` tells the "
            "version, `dalle-lib COMMAND --help` what a command does, with examples.",
        )
        command.run()
    except KeyboardInterrupt:
        print("dalle-lib: stopped.", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dalle_lib"):
            raise
        extra = EXTRAS.get(error.name.split(".")[0], "inference")
        sys.exit(f'dalle-lib: {in_one_line(error)}: pip install "dalle-lib[{extra}]"')
    except (ValueError, RuntimeError, OSError, FloatingPointError) as error:
        sys.exit(f"dalle-lib: {_told(error)}")


def _told(error: Exception) -> str:
    """Return an error as one line. That of a peer which crashed is its first line: the log's end was shown before."""
    from dalle_lib.swarm import PeerFailed

    return str(error).splitlines()[0] if isinstance(error, PeerFailed) else in_one_line(error)
