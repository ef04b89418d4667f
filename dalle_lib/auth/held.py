"""The access token that a peer holds, in a file of its folder; it is renewed while the peer runs."""

import logging
from datetime import UTC, datetime
from pathlib import Path

from dalle_lib.auth.authority import write_private
from dalle_lib.auth.tokens import TOKEN, AccessToken, Refused
from dalle_lib.files import Followed, small_bytes

logger = logging.getLogger(__name__)


class HeldToken:
    """This peer's own access token, expired or not; each of its processes sees by itself when another one is there."""

    def __init__(self, folder: str | Path, peer_id: str, authority: bytes, run: str) -> None:
        """`authority` is the run's own key, the root, 32 bytes. The file need not exist."""
        self.file, self.peer_id = Path(folder) / TOKEN, peer_id
        self._authority, self._run = authority, run
        self._followed = Followed(self.file, self._read)

    def now(self) -> AccessToken | None:
        """Return it; None if the file holds none that the authority issued for this peer."""
        return self._followed.now()

    def counting(self) -> AccessToken | None:
        """Return it if it has not expired; None otherwise."""
        held = self.now()
        return None if held is None or datetime.now(UTC) >= held.expires else held

    def keep(self, data: bytes) -> AccessToken:
        """Put another one into the file, for its owner alone, and return it. Raises ValueError if it does not count."""
        token = AccessToken.from_bytes(data)
        token.check_for(self.peer_id, self._authority, self._run, datetime.now(UTC))
        write_private(self.file, data)
        return token

    def _read(self) -> AccessToken | None:
        try:
            token = AccessToken.from_bytes(small_bytes(self.file))
            token.check_issued(self._authority, self._run)
            if token.peer_id != self.peer_id:
                raise Refused(f"it is for peer {token.peer_id}, not for {self.peer_id}")
        except (ValueError, FileNotFoundError) as error:
            logger.debug("%s holds no access token of this peer: %s", self.file, error)
            return None
        return token
