"""Signs the access tokens and ban lists of a run, and keeps keys in files that only their owner can read."""

import base64
import binascii
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dalle_lib.auth.bans import BanList
from dalle_lib.auth.signing import KEY_BYTES, Delegation
from dalle_lib.auth.tokens import AccessToken, Role
from dalle_lib.files import replace_file, small_bytes
from dalle_lib.peer_keys import check_key

_BEGIN, _END = b"-----BEGIN DALLE-LIB DELEGATION-----\n", b"\n-----END DALLE-LIB DELEGATION-----\n"


class Authority:
    """Signs the access tokens of a run: whoever holds its key decides who takes part.

    It holds the root key, whose public half the run card names, or a signing key to which the root has delegated.
    """

    def __init__(self, key: Ed25519PrivateKey, delegation: Delegation | None = None) -> None:
        self._key = key
        self.delegation = delegation
        """What lets this signing key sign for the root, in one run until a time; None for the root itself."""

    def __repr__(self) -> str:
        until = "" if self.delegation is None else f", run={self.delegation.run!r}, until={self.delegation.expires}"
        return f"Authority(public_key={self.public_key!r}{until})"

    @classmethod
    def generate(cls) -> "Authority":
        """Return an authority with a new root key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, file: str | Path) -> "Authority":
        """Return the authority in a file, with its delegation if it is a signing key's.

        Raises ValueError if others can read the file, or if it holds no such key.
        """
        file = Path(file)
        if others_can_read(file):
            raise ValueError(
                f"expected that only its owner can read {file}, because whoever reads it can admit anybody: run "
                f"chmod 600 {file} (on a disk that keeps permissions), or make a new key if others had access."
            )
        try:
            pem, begin, rest = small_bytes(file).partition(_BEGIN)
            key = serialization.load_pem_private_key(pem, password=None)
            delegation = (
                Delegation.from_bytes(base64.b64decode(rest.removesuffix(_END), validate=True)) if begin else None
            )
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"expected {file} to hold the key of an authority, in PEM: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"expected {file} to hold an Ed25519 key, but it is {type(key).__name__}")
        if delegation is not None and delegation.public_key != key.public_key().public_bytes_raw():
            raise ValueError(f"expected {file} to hold a signing key with its delegation, but that is another key's.")
        return cls(key, delegation)

    def save(self, file: str | Path) -> None:
        """Write the key to a file that only its owner can read, in PEM, whole or not at all.

        Raises ValueError if the file exists, unless a signing key takes the place of another.
        """
        file = Path(file)
        if file.exists() and (self.delegation is None or Authority.load(file).delegation is None):
            raise ValueError(
                f"{file} exists, and may be the only copy of a run's key: choose another name, or move it."
            )
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        if self.delegation is not None:
            pem += _BEGIN + base64.b64encode(self.delegation.to_bytes()) + _END
        write_private(file, pem)

    @property
    def public_key(self) -> str:
        """The public half of its key, 32 bytes in base64; the root's stands in the run card."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def delegate(self, run: str, valid_for: timedelta, now: datetime | None = None) -> "Authority":
        """Return a new signing key, which may sign for this root in one run for that time.

        Raises ValueError if this is a signing key itself.
        """
        if self.delegation is not None:
            raise ValueError("a signing key cannot delegate: take the root key, whose public half is in the run card.")
        key = Ed25519PrivateKey.generate()
        delegation = Delegation(run, key.public_key().public_bytes_raw(), _after(valid_for, now))
        return Authority(key, delegation.signed(self._key.sign(delegation.signed_bytes())))

    def issue(
        self, user: str, role: Role, run: str, public_key: bytes, valid_for: timedelta, now: datetime | None = None
    ) -> AccessToken:
        """Return a signed access token for the peer with that public key (DER).

        It expires after `valid_for`, or with the delegation of this signing key. Raises Refused for a key that no peer
        may have, and ValueError if the delegation has expired or is for another run.
        """
        check_key(public_key)
        token = AccessToken(user, role, run, public_key, self._until(run, valid_for, now), delegation=self.delegation)
        return token.signed(self._key.sign(token.signed_bytes()))

    def sign_bans(
        self,
        run: str,
        serial: int,
        users: Iterable[str],
        peers: Iterable[str],
        valid_for: timedelta,
        now: datetime | None = None,
    ) -> BanList:
        """Return a signed list of the users (of the Hub) and the peers (ids) that no longer take part in a run.

        The list with the highest serial counts, until it expires. Raises ValueError as `issue` does.
        """
        issued, expires = _after(timedelta(0), now), self._until(run, valid_for, now)
        names = frozenset(user.casefold() for user in users)
        bans = BanList(run, serial, issued, expires, names, frozenset(peers), delegation=self.delegation)
        return bans.signed(self._key.sign(bans.signed_bytes()))

    def _until(self, run: str, valid_for: timedelta, now: datetime | None) -> datetime:
        """Return when what is signed now expires: never later than this signing key's delegation."""
        expires = _after(valid_for, now)
        if self.delegation is None:
            return expires
        if self.delegation.run != run:
            raise ValueError(f"this signing key is for the run {self.delegation.run!r}, not for {run!r}: take its own.")
        if self.delegation.expires <= _after(timedelta(0), now):
            raise ValueError(
                f"the delegation of this signing key expired at {self.delegation.expires:%Y-%m-%d %H:%M:%S} UTC: make "
                "a new signing key with the root key."
            )
        return min(expires, self.delegation.expires)


def _after(time: timedelta, now: datetime | None) -> datetime:
    return ((now or datetime.now(UTC)) + time).replace(microsecond=0)


def authority_key(text: str) -> bytes:
    """Return the 32 bytes of the public key that a run card holds in base64. Raises ValueError for anything else."""
    try:
        key = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"expected an authority's public key, {KEY_BYTES} bytes in base64, not {text!r:.80}: copy it again."
        )
    return key


def others_can_read(file: Path) -> bool:
    """Return whether users besides the file's owner may read or write it."""
    return bool(file.stat().st_mode & 0o077)


def write_private(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    with (
        replace_file(file, durable=True) as unfinished,
        open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle,
    ):
        handle.write(data)
