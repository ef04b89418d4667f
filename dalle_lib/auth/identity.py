"""Keeps the key by which libp2p, the hash table and the run's authority know a peer."""

import logging
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth.authority import others_can_read
from dalle_lib.auth.keys import PeerKey
from dalle_lib.peer_keys import key_bytes, peer_id_of

logger = logging.getLogger(__name__)


class Identity:
    """Holds a peer's RSA key; its file is the one that `hivemind.DHT(identity_path=...)` reads."""

    def __init__(self, private_key: RSAPrivateKey) -> None:
        self.private_key = private_key
        """The private key, which signs records and requests."""
        loaded = serialization.load_der_private_key(private_key.to_bytes(), password=None)
        self.public_key: bytes = key_bytes(loaded.public_key())
        """The public key as access tokens hold it: DER, SubjectPublicKeyInfo."""
        self.peer_id: str = peer_id_of(self.public_key)
        """The libp2p id that follows from the key."""

    def __repr__(self) -> str:
        return f"Identity(peer_id={self.peer_id!r})"

    @classmethod
    def load_or_create(cls, file: str | Path) -> "Identity":
        """Return the identity in a file, and make it if the file is missing. Raises ValueError for any other file."""
        file = Path(file)
        key = PeerKey.load_or_create(file)
        if others_can_read(file):
            logger.warning(
                "other users of this computer can read %s, and could pretend to be this peer: run chmod 600 on it", file
            )
        return cls(_LoadedKey(key.private_key))


class _LoadedKey(RSAPrivateKey):
    """hivemind's private key, of an identity file."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:  # hivemind's constructor can only make new keys
        self._private_key = key
