"""Ban lists: who no longer takes part in a run, though their access tokens have not expired."""

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dalle_lib.auth.signing import (
    Delegation,
    Refused,
    as_seconds,
    check_signed,
    from_seconds,
    joined,
    require_name,
    require_time,
    split,
    unwrapped,
)
from dalle_lib.auth.tokens import AccessToken
from dalle_lib.files import Followed, replace_file, small_bytes

logger = logging.getLogger(__name__)

BANS = "bans"
"""The file in a peer's folder that holds the newest list it knows."""
MAX_BYTES = 2**20
"""Size of a ban list, beyond which it is none: about 20,000 names and peers."""
_NAME = b"dalle-lib bans "
_MAGIC = _NAME + b"1\n"
_FIELDS = 8
_WHAT = "a ban list"


@dataclass(frozen=True)
class BanList:
    """Names users and peers whose access tokens count no more in one run; its authority signs it.

    Bytes: the line ``dalle-lib bans 1``, then run, serial, issued and expires (8 bytes each), users, peers, delegation
    and signature, each after its length, as in an access token. Users and peers are sorted fields of such fields.
    """

    run: str
    serial: int
    """A list with a higher one replaces this one."""
    issued: datetime
    expires: datetime
    """In UTC, to the second. From then on the list counts no more, and its peers ask for another long before."""
    users: frozenset[str]
    """Names of users in lower case: the Hub does not tell "Ada" from "ada"."""
    peers: frozenset[str]
    """Ids of peers."""
    signature: bytes = b""
    delegation: Delegation | None = None
    """Which key signed this for the authority; None if its own did."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        for time in self.issued, self.expires:
            require_time(time)
        if not 0 <= self.serial < 2**63:
            raise ValueError(f"expected a serial from 0 to 2**63 - 1, not {self.serial}")
        for name in (*self.users, *self.peers):
            require_name("name of a banned user or peer", name)
        if others := [user for user in self.users if user != user.casefold()]:
            raise ValueError(f"expected names of banned users in lower case, not {others[0]!r}")

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed; no two different lists share them."""
        numbers = self.serial.to_bytes(8), as_seconds(self.issued), as_seconds(self.expires)
        names = (joined(*sorted(name.encode() for name in group)) for group in (self.users, self.peers))
        delegation = b"" if self.delegation is None else self.delegation.to_bytes()
        return _MAGIC + joined(self.run.encode(), *numbers, *names, delegation)

    def to_bytes(self) -> bytes:
        """Return the list as bytes, signature included."""
        return self.signed_bytes() + joined(self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> "BanList":
        """Return the list in `to_bytes()`. Raises ValueError for anything else."""
        fields = split(unwrapped(data, _NAME, _MAGIC, MAX_BYTES, _WHAT), _FIELDS, _WHAT)
        run, serial, issued, expires, users, peers, delegation, signature = fields
        times = from_seconds(issued, _WHAT), from_seconds(expires, _WHAT)
        names = (frozenset(name.decode() for name in split(group, None, _WHAT)) for group in (users, peers))
        by = Delegation.from_bytes(delegation) if delegation else None
        return cls(run.decode(), int.from_bytes(serial), *times, *names, signature, by)

    def signed(self, signature: bytes) -> "BanList":
        """Return this list with that signature."""
        return replace(self, signature=signature)

    def check(self, authority: bytes, run: str, now: datetime) -> None:
        """Return None if the authority of that run issued this, and it counts at the time `now`.

        `authority` is its own key, the root, 32 bytes. Raises Refused otherwise.
        """
        check_signed(_WHAT, self.signed_bytes(), self.signature, self.delegation, self.expires, authority, run)
        if self.run != run:
            raise Refused(f"the ban list is for the run {self.run!r}, not for {run!r}")
        if now >= self.expires:
            raise Refused(f"the ban list expired at {self.expires:%Y-%m-%d %H:%M:%S} UTC: ask for a new one.")

    def names(self, token: AccessToken) -> bool:
        """Return whether an access token's user or peer is banned."""
        return token.user.casefold() in self.users or token.peer_id in self.peers


class Bans:
    """The newest ban list that a peer knows, in a file of its folder; each of its processes looks there by itself."""

    def __init__(self, file: Path, authority: bytes, run: str) -> None:
        """`authority` is the run's own key, the root, 32 bytes. The file need not exist."""
        self._file, self._authority, self._run = file, authority, run
        self._followed = Followed(file, self._read)

    def current(self, now: datetime | None = None) -> BanList | None:
        """Return the list in the file, read anew when the file has changed; None if there is none that counts now."""
        bans = self._followed.now()
        return None if bans is None or (now or datetime.now(UTC)) >= bans.expires else bans

    def _read(self) -> BanList | None:
        try:
            bans = BanList.from_bytes(small_bytes(self._file, MAX_BYTES))
            bans.check(self._authority, self._run, datetime.now(UTC))
        except (ValueError, FileNotFoundError) as error:
            logger.warning("%s counts as no ban list: %s", self._file, error)
            return None
        return bans

    def names(self, token: AccessToken) -> bool:
        """Return whether an access token's user or peer is banned now."""
        bans = self.current()
        return bans is not None and bans.names(token)

    def check(self, token: AccessToken) -> None:
        """Return None if neither the user nor the peer of an access token is banned. Raises Refused otherwise."""
        if self.names(token):
            raise Refused(f"{token.user!r} or peer {token.peer_id} is banned from this run: ask its organiser why.")

    def keep(self, data: bytes) -> BanList:
        """Write a list that the authority sent to the file, and return it; an equal one is written anew.

        Raises ValueError if it is no list of this run that counts now, and Refused if a newer one is known.
        """
        bans = BanList.from_bytes(data)
        bans.check(self._authority, self._run, datetime.now(UTC))
        known = self.current()
        if known is not None and bans.serial < known.serial:
            raise Refused(f"a ban list with serial {bans.serial} came, but {known.serial} is known: it is an old one.")
        with replace_file(self._file) as unfinished:
            unfinished.write_bytes(data)
        return bans
