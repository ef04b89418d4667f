"""Keeps the key by which libp2p, the hash table and the run's authority know a peer."""

import logging
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.message import DecodeError
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth.authority import others_can_read, write_private
from dalle_lib.auth.tokens import Refused, check_key, key_bytes, peer_id_of
from dalle_lib.files import small_bytes

logger = logging.getLogger(__name__)


class Identity:
    """Holds a peer's RSA key; its file is the one that `hivemind.DHT(identity_path=...)` reads."""

    def __init__(self, private_key: RSAPrivateKey) -> None:
        self.private_key = private_key
        """The private key, which signs records and requests."""
        self.public_key: bytes = key_bytes(_loaded(private_key.to_bytes()).public_key())
        """The public key as access tokens hold it: DER, SubjectPublicKeyInfo."""
        self.peer_id: str = peer_id_of(self.public_key)
        """The libp2p id that follows from the key."""

    def __repr__(self) -> str:
        return f"Identity(peer_id={self.peer_id!r})"

    @classmethod
    def load_or_create(cls, file: str | Path) -> "Identity":
        """Return the identity in a file, and make it if the file is missing. Raises ValueError for any other file."""
        file = Path(file)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            message = crypto_pb2.PrivateKey(key_type=crypto_pb2.RSA, data=RSAPrivateKey().to_bytes())
            write_private(file, message.SerializeToString())
        if others_can_read(file):
            logger.warning(
                "other users of this computer can read %s, and could pretend to be this peer: run chmod 600 on it", file
            )
        try:
            identity = cls(_LoadedKey(crypto_pb2.PrivateKey.FromString(small_bytes(file)).data))
            check_key(identity.public_key)
        except Refused as error:
            raise ValueError(f"{file}: {error}") from error
        except (DecodeError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(
                f"expected {file} to hold a peer's identity: {error}. Move it away, and a new one is made; "
                "the peer then needs a new access token."
            ) from error
        return identity


class _LoadedKey(RSAPrivateKey):
    """hivemind's private key, from the DER in an identity file."""

    def __init__(self, data: bytes) -> None:  # hivemind's constructor can only make new keys
        self._private_key = _loaded(data)


def _loaded(data: bytes) -> rsa.RSAPrivateKey:
    key = serialization.load_der_private_key(data, password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError(f"it is {type(key).__name__}, not RSA")
    return key
