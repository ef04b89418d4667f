"""A peer's key without hivemind: proves to an authority that a request is the peer's, before the peer starts."""

import base64
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dalle_lib.auth.authority import write_private
from dalle_lib.files import small_bytes
from dalle_lib.peer_keys import PEER_SIGNS, Refused, check_key, key_bytes, peer_id_of


class PeerKey:
    """The RSA key in an identity file, the one that `Identity` and hivemind read."""

    def __init__(self, private_key: rsa.RSAPrivateKey) -> None:
        """Raises Refused for a key that no peer may have."""
        self.private_key = private_key
        self.public_key: bytes = key_bytes(private_key.public_key())
        """The public key as access tokens hold it: DER, SubjectPublicKeyInfo."""
        check_key(self.public_key)
        self.peer_id: str = peer_id_of(self.public_key)
        """The libp2p id that follows from the key."""

    def __repr__(self) -> str:
        return f"PeerKey(peer_id={self.peer_id!r})"

    @classmethod
    def load(cls, file: Path) -> "PeerKey":
        """Return the key in an identity file. Raises ValueError if it holds none, and FileNotFoundError without it."""
        try:
            data = small_bytes(file)
            der = data[len(_before(b"")) :]
            if data != _before(der) + der:
                raise ValueError("it does not begin as libp2p writes an RSA key")
            key = serialization.load_der_private_key(der, password=None)
            if not isinstance(key, rsa.RSAPrivateKey):
                raise ValueError(f"it is {type(key).__name__}, not RSA")
            return cls(key)
        except Refused as error:
            raise ValueError(f"{file}: {error}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(
                f"expected {file} to hold a peer's identity: {error}. Move it away, and a new one is made; the peer "
                "then needs a new access token."
            ) from error

    @classmethod
    def load_or_create(cls, file: Path) -> "PeerKey":
        """Return the key in an identity file, and make it if the file is missing. Raises ValueError as `load` does."""
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
            write_private(file, _before(key) + key)
        return cls.load(file)

    def sign(self, data: bytes) -> str:
        """Return the signature of `data` in base64, as an authority's server expects it."""
        return base64.b64encode(self.private_key.sign(data, *PEER_SIGNS)).decode()


def _before(key: bytes) -> bytes:
    """Return what libp2p writes before a private key in DER: its type, RSA, and its length in base 128."""
    return b"\x08\x00\x12" + bytes([len(key) & 127 | 128, len(key) >> 7 & 127])
