"""`dalle-lib run ...`: make a run, look at it, and change it. Each command has a module of its own."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from dalle_lib.cli.run.check import Check
from dalle_lib.cli.run.edit import Edit
from dalle_lib.cli.run.finish import Finish
from dalle_lib.cli.run.invite import Invite
from dalle_lib.cli.run.new import New
from dalle_lib.cli.run.plan import PlanCommand
from dalle_lib.cli.run.publish import Publish
from dalle_lib.cli.run.rehearse import RehearseCommand
from dalle_lib.cli.run.token import Token


@dataclass(frozen=True)
class Run:
    """Make a run of a data set; look at one, plan, rehearse and publish it, invite people to it, change it, end it."""

    command: Annotated[
        Annotated[New, tyro.conf.subcommand("new")]
        | Annotated[Check, tyro.conf.subcommand("check")]
        | Annotated[PlanCommand, tyro.conf.subcommand("plan")]
        | Annotated[RehearseCommand, tyro.conf.subcommand("rehearse")]
        | Annotated[Publish, tyro.conf.subcommand("publish")]
        | Annotated[Invite, tyro.conf.subcommand("invite")]
        | Annotated[Edit, tyro.conf.subcommand("edit")]
        | Annotated[Finish, tyro.conf.subcommand("finish")]
        | Annotated[Token, tyro.conf.subcommand("token")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Do what was chosen."""
        self.command.run()
