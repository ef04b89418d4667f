"""Access tokens for a run without a server, from a list of its members."""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dalle_lib.auth import AccessToken, Authority, Role
from dalle_lib.auth.authority import write_private
from dalle_lib.auth.tokens import TOKEN
from dalle_lib.files import reading, small_text
from dalle_lib.peer_keys import check_key, peer_id_of
from dalle_lib.run import RunCard


@dataclass(frozen=True)
class Listed:
    """One peer in an organiser's list."""

    user: str
    """Who it belongs to."""
    public_key: bytes
    """Its public key (DER), as `dalle-lib id` prints it in base64."""
    role: Role = Role.MEMBER

    def __post_init__(self):
        """Raise ValueError for a user whose name could lead out of the folder of access tokens, or a key that is none.

        Volunteers send their lines, and the organiser copies them.
        """
        if not re.fullmatch(r"\w[\w.-]{,99}", self.user):
            raise ValueError("a user is named by letters, digits, and . - _ after the first, up to 100 in all")
        check_key(self.public_key)


def read_list(file: str | Path) -> list[Listed]:
    """Return the peers in a file with a line for each: user, public key, and perhaps a role, with blanks between.

    Empty lines and those that begin with "#" are left out. Raises ValueError for a line that says something else, with
    its number.
    """
    peers = []
    with reading(file, "a list of members", "Save it as text, in UTF-8."):
        text = small_text(Path(file))
    # At "\n" alone: editors do not show the other signs at which `splitlines` ends a line, and volunteers send theirs.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            user, key, role = line.split() if len(line.split()) > 2 else [*line.split(), Role.MEMBER.value]
            peers.append(Listed(user, base64.b64decode(key, validate=True), Role(role)))
        except (ValueError, binascii.Error) as error:
            raise ValueError(
                f'{file}, line {number}: expected "USER PUBLIC-KEY" or "USER PUBLIC-KEY ROLE", with the key that '
                f"dalle-lib id prints and a role among {', '.join(role.value for role in Role)}, but got "
                f"{line.strip()!r:.80} ({error})."
            ) from error
    return peers


def issue_tokens(
    card: RunCard, root: Authority, peers: list[Listed], out: str | Path, valid_for: timedelta
) -> dict[Path, AccessToken]:
    """Write an access token for each peer to a file in `out`, named by user and peer id, and return them by file.

    The user copies it into the peer's folder as `access.token`. Nobody can take these tokens back before they expire:
    such a run has no ban list. Raises ValueError if `root` is not the key that the card names, or a key is none.
    """
    if card.members is None or root.public_key != card.members.authority:
        raise ValueError(f"expected the root key of run {card.name!r}, but its card names another, or none.")
    issued = {}
    for peer in peers:
        token = root.issue(peer.user, peer.role, card.name, peer.public_key, valid_for)
        file = Path(out) / f"{peer.user}-{peer_id_of(peer.public_key)[-8:]}.{TOKEN}"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, token.to_bytes())
        issued[file] = token
    return issued
