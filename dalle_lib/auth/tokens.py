"""Access tokens: the authority's signed statement that a peer belongs to a user who may take part in a run."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from dalle_lib.auth.signing import (
    Delegation,
    as_seconds,
    check_signed,
    from_seconds,
    joined,
    require_name,
    require_time,
    split,
    unwrapped,
)
from dalle_lib.peer_keys import Refused, check_key, peer_id_of

TOKEN = "access.token"
"""The file in a peer's folder that lets it take part in a run for members."""
_NAME = b"dalle-lib access token "
_MAGIC = _NAME + b"2\n"
"""The version is part of what is signed; another layout needs another number."""
_MAX_BYTES = 4096
_FIELDS = 7
_WHAT = "an access token"


class Role(StrEnum):
    """What the authority trusts a user with."""

    MEMBER = "member"
    VOUCHED = "vouched"
    """A member whom the organisers know; a run may let only vouched members reduce."""


@dataclass(frozen=True)
class AccessToken:
    """Names a user, their role in one run, and the one peer of theirs that it is for; the run's authority signs it.

    Bytes on the wire: the line ``dalle-lib access token 2``, then user, role, run, public key, seconds since 1970 when
    it expires (8 bytes), delegation (empty where the authority's own key signed), and signature, each after its length
    in 4 bytes. Numbers are big-endian, text is UTF-8.
    """

    user: str
    role: Role
    run: str
    public_key: bytes
    """The peer's RSA key, from which its id follows: DER, SubjectPublicKeyInfo."""
    expires: datetime
    """In UTC, to the second."""
    signature: bytes = b""
    """The Ed25519 signature of `signed_bytes()`, by the authority or for it; empty before it signs."""
    delegation: Delegation | None = None
    """Which key signed this for the authority; None if its own did."""

    def __post_init__(self) -> None:
        require_name("user", self.user)
        require_name("run", self.run)
        require_time(self.expires)

    @property
    def peer_id(self) -> str:
        """The libp2p id of the peer that holds the private half of `public_key`."""
        return peer_id_of(self.public_key)

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed; no two different access tokens share them."""
        fields = self.user.encode(), self.role.value.encode(), self.run.encode(), self.public_key
        delegation = b"" if self.delegation is None else self.delegation.to_bytes()
        return _MAGIC + joined(*fields, as_seconds(self.expires), delegation)

    def to_bytes(self) -> bytes:
        """Return the access token as bytes, signature included."""
        return self.signed_bytes() + joined(self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> "AccessToken":
        """Return the access token in `to_bytes()`. Raises ValueError for anything else."""
        fields = split(unwrapped(data, _NAME, _MAGIC, _MAX_BYTES, _WHAT), _FIELDS, _WHAT)
        user, role, run, public_key, seconds, delegation, signature = fields
        expires = from_seconds(seconds, _WHAT)
        try:
            by = Delegation.from_bytes(delegation) if delegation else None
            return cls(user.decode(), Role(role.decode()), run.decode(), public_key, expires, signature, by)
        except ValueError as error:
            raise ValueError(f"an access token is malformed: {error}") from error

    def signed(self, signature: bytes) -> "AccessToken":
        """Return this access token with that signature."""
        return replace(self, signature=signature)

    def check_issued(self, authority: bytes, run: str) -> None:
        """Return None if the authority issued this for a peer of that run, expired or not. Raises Refused otherwise.

        `authority` is its own key, the root, 32 bytes: one to which it delegated may have signed.
        """
        what = f"the access token of {self.user!r}"
        check_signed(what, self.signed_bytes(), self.signature, self.delegation, self.expires, authority, run)
        if self.run != run:
            raise Refused(f"{what} is for the run {self.run!r}, not for {run!r}: ask for one.")
        check_key(self.public_key)

    def check(self, authority: bytes, run: str, now: datetime) -> None:
        """Return None if this lets its peer take part in the run at the time `now`. Raises Refused otherwise."""
        self.check_issued(authority, run)
        self.check_unexpired(now)

    def check_for(self, peer_id: str, authority: bytes, run: str, now: datetime) -> None:
        """Return None if this lets that peer take part in the run at the time `now`. Raises Refused otherwise."""
        if self.peer_id != peer_id:
            raise Refused(f"the access token is for peer {self.peer_id}, not for {peer_id}")
        self.check(authority, run, now)

    def check_unexpired(self, now: datetime) -> None:
        """Return None if this has not expired at the time `now`. Raises Refused otherwise."""
        if now >= self.expires:
            late = timedelta(seconds=int((now - self.expires).total_seconds()))
            raise Refused(
                f"the access token of {self.user!r} expired {late} (h:mm:ss) ago: ask for a new one. "
                f"If it is new, this computer's clock is wrong: it says {now:%Y-%m-%d %H:%M:%S} UTC."
            )
