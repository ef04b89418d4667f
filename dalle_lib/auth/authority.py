"""Signs the access tokens of a run, and keeps keys in files that only their owner can read."""

import base64
import binascii
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dalle_lib.auth.tokens import AccessToken, Role, check_key
from dalle_lib.files import replace_file, small_bytes

_KEY_BYTES = 32


class Authority:
    """Signs the access tokens of a run: whoever holds its key decides who takes part."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"Authority(public_key={self.public_key!r})"

    @classmethod
    def generate(cls) -> "Authority":
        """Return an authority with a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, file: str | Path) -> "Authority":
        """Return the authority in a file. Raises ValueError if others can read the file, or if it holds no such key."""
        file = Path(file)
        if others_can_read(file):
            raise ValueError(
                f"expected that only its owner can read {file}, because whoever reads it can admit anybody: run "
                f"chmod 600 {file} (on a disk that keeps permissions), or make a new key if others had access."
            )
        try:
            key = serialization.load_pem_private_key(small_bytes(file), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"expected {file} to hold the key of an authority, in PEM: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"expected {file} to hold an Ed25519 key, but it is {type(key).__name__}")
        return cls(key)

    def save(self, file: str | Path) -> None:
        """Write the key to a new file that only its owner can read, in PEM. Raises ValueError if the file exists."""
        file = Path(file)
        if file.exists():
            raise ValueError(
                f"{file} exists, and may be the only copy of a run's key: choose another name, or move it."
            )
        write_private(
            file,
            self._key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    @property
    def public_key(self) -> str:
        """The key that verifies its access tokens, 32 bytes in base64, for the run card."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def issue(
        self, user: str, role: Role, run: str, public_key: bytes, valid_for: timedelta, now: datetime | None = None
    ) -> AccessToken:
        """Return a signed access token for the peer with that public key (DER).

        Raises Refused for a key that no peer may have.
        """
        check_key(public_key)
        expires = ((now or datetime.now(UTC)) + valid_for).replace(microsecond=0)
        token = AccessToken(user, role, run, public_key, expires)
        return token.signed(self._key.sign(token.signed_bytes()))


def authority_key(text: str) -> bytes:
    """Return the 32 bytes of the public key that a run card holds in base64. Raises ValueError for anything else."""
    try:
        key = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"expected an authority's public key, {_KEY_BYTES} bytes in base64, not {text!r:.80}: copy it again."
        )
    return key


def others_can_read(file: Path) -> bool:
    """Return whether users besides the file's owner may read or write it."""
    return bool(file.stat().st_mode & 0o077)


def write_private(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    with (
        replace_file(file) as unfinished,
        open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle,
    ):
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
