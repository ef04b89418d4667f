"""`dalle-lib run ...`: make a run, look at it, and change it. Each command has a module of its own."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from dalle_lib.cli.run.check import Check
from dalle_lib.cli.run.new import New
from dalle_lib.cli.run.plan import PlanCommand


@dataclass(frozen=True)
class Run:
    """Make a run of a data set, look at one, plan it."""

    command: Annotated[
        Annotated[New, tyro.conf.subcommand("new")]
        | Annotated[Check, tyro.conf.subcommand("check")]
        | Annotated[PlanCommand, tyro.conf.subcommand("plan")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Do what was chosen."""
        self.command.run()
