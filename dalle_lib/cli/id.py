"""`dalle-lib id`."""

import base64
from dataclasses import dataclass
from pathlib import Path

from dalle_lib.swarm.process.folder import IDENTITY, PEERS


@dataclass(frozen=True, kw_only=True)
class Id:
    """Print the id and the public key of each peer here.

    By these, organisers and authorities know a peer; the private half stays where it is. For example:

    dalle-lib id

    dalle-lib id --folder peers/owner--name/ada
    """

    folder: Path = PEERS
    """A peer's folder, or a folder in which peers were started."""

    def run(self) -> None:
        """Print both for each. Raises FileNotFoundError if there is no peer, and ValueError for a broken identity."""
        from dalle_lib.auth.keys import PeerKey

        files = sorted(file for depth in ("", "*/", "*/*/") for file in self.folder.glob(f"{depth}{IDENTITY}"))
        if not files:
            raise FileNotFoundError(
                f"expected a peer in {self.folder}, but none has begun there: name another --folder, or start one with "
                "dalle-lib join, which makes its identity."
            )
        for file in files:
            key = PeerKey.load(file)
            public = base64.b64encode(key.public_key).decode()
            print(f"{file.parent}\n  id:         {key.peer_id}\n  public key: {public}")
