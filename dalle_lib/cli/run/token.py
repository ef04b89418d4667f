"""`dalle-lib run token`."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Token:
    """Give access tokens by a list, in a run for members whose authority has no server.

    Each volunteer sends the public key that `dalle-lib id` prints, and copies the file that you send back into the
    folder of that peer, as access.token. In the list, each line is "USER PUBLIC-KEY" or "USER PUBLIC-KEY vouched".

    For example:

    dalle-lib run token outputs/club-run --root club-run.keys/root.pem --names members.txt --out tokens
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, or owner/name on the Hub."""
    root: Path
    """File of the run's root key."""
    names: Path
    """File with a line for each peer."""
    out: Path
    """Folder for the access tokens, a file each."""
    hours: float = 24.0
    """Hours until they expire. Nobody can take one back before."""

    def run(self) -> None:
        """Write them, and say which file is whose."""
        from dalle_lib.auth import Authority
        from dalle_lib.organizing.tokens import issue_tokens, read_list
        from dalle_lib.run import RunCard, hub_token_for

        if not 0 < self.hours <= 24 * 366:
            raise ValueError(f"expected --hours above 0 and of a year at most, but got {self.hours:g}.")
        card, peers = RunCard.load(self.named, hub_token_for(self.named)), read_list(self.names)
        issued = issue_tokens(card, Authority.load(self.root), peers, self.out, timedelta(hours=self.hours))
        for file, token in issued.items():
            print(f"{file}: {token.user}, {token.role.value}, until {token.expires:%Y-%m-%d %H:%M} UTC")
