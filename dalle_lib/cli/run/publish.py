"""`dalle-lib run publish`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Publish:
    """Send a run to the Hub, where volunteers enter it by owner/name: its card and what the card names, no keys.

    For example, and again after a change of its files:

    dalle-lib run publish outputs/photos-run owner/photos

    dalle-lib run publish outputs/photos-run owner/photos --anew
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder of the run."""
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
    """The model repository, which is made if it is new."""
    private: bool = False
    """Make a private repository: volunteers need a Hub token that reads it, and links to its notebook do not open."""
    anew: bool = False
    """Replace another run, or a card that was changed there."""

    def run(self) -> None:
        """Publish, and say where the run is and how people enter it."""
        from dalle_lib.organizing.keys import authority_of
        from dalle_lib.organizing.publishing import publish_run
        from dalle_lib.platforms import hub_token

        page = publish_run(self.folder, self.repository, hub_token(), private=self.private, anew=self.anew)
        print(f"Page:     {page}\nInvite:   dalle-lib run invite {self.repository}")
        if (authority := authority_of(self.folder)) is not None:
            print(f"Server:   takes the card from there from now on. Copy {authority} to the machine where it runs.")
