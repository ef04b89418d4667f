"""The command line: `dalle-lib demo`, `join`, `status`, `generate`, `memory`, `doctor` and `convert-vqgan`.

Each command is a dataclass in a module of its own; its fields are its options. It imports what it needs when it runs,
so --help is quick.
"""

import sys

import tyro

from dalle_lib.cli.convert_vqgan import ConvertVqgan
from dalle_lib.cli.demo import Demo
from dalle_lib.cli.doctor import Doctor
from dalle_lib.cli.generate import Generate
from dalle_lib.cli.join import Join
from dalle_lib.cli.memory import Memory
from dalle_lib.cli.status import Status


def main() -> None:
    """Run the command that the arguments name; an error of the user's ends it with one line and exit code 1."""
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
            description="Train a text-to-image model together, and draw with it.",
        )
        command.run()
    except (ValueError, RuntimeError, ConnectionError, FloatingPointError) as error:
        sys.exit(f"dalle-lib: {error}")
