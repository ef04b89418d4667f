"""`dalle-lib run invite`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Invite:
    """Print the invitation to a run on the Hub: its page with a code to scan, links, the line for a terminal.

    For example, also with files for a poster and a page of your own:

    dalle-lib run invite owner/photos

    dalle-lib run invite owner/photos --out invitation

    dalle-lib run invite owner/photos --team "The Night Owls"
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
    """The run's repository on the Hub."""
    out: Path | None = None
    """A folder for the text, the code as SVG, and notebook 01 with the run filled in."""

    team: str = ""
    """The team that those who are invited shall count for, if any."""

    def run(self) -> None:
        """Print it, and write the files that are asked for."""
        from dalle_lib.organizing.inviting import NOTEBOOK, Invitation, notebook_for
        from dalle_lib.run import RunCard, hub_token_for

        card = RunCard.load(self.named, hub_token_for(self.named))
        if card.repository is None:
            raise ValueError(
                f"expected owner/name on the Hub, but {self.named} is here: `dalle-lib run publish` it first."
            )
        invitation = Invitation.to(self.named, card, self.team)
        print(f"{invitation}\n\n{invitation.scanned()}")
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "invitation.txt").write_text(f"{invitation}\n", encoding="utf-8")
            (self.out / "page.svg").write_text(invitation.svg(), encoding="utf-8")
            (self.out / NOTEBOOK).write_bytes(notebook_for(self.named, self.team))
            print(f"\nFiles:    invitation.txt, page.svg and {NOTEBOOK} in {self.out}")
