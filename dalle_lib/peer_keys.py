"""Public keys of peers: which a peer may have, the id that follows from one, and who has signed something."""

import base64
import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

PEER_SIGNS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH), hashes.SHA256()
"""Padding and hash of signatures by a peer's RSA key, as hivemind's `RSAPrivateKey.sign` makes them."""
MAX_SIGNATURE = 2000
"""Letters of a public key, and of a signature, in base64."""
_KEY_BITS, _EXPONENT = range(2048, 4097), 65537
"""Of the keys of peers. A signature by one with the longest exponent takes 2 ms to check, in place of 0.1."""
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class Refused(ValueError):
    """A key, an access token, or what else is signed, does not count here; the text says why, and what to do."""


def check_key(public_key: bytes) -> None:
    """Return None if these are the bytes of an RSA key that a peer may have. Raises Refused otherwise."""
    try:
        key = serialization.load_der_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refused(
            f"the peer's key cannot be read ({error}): expected the public key of its identity file"
        ) from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size not in _KEY_BITS:
        kind = f"RSA of {key.key_size} bits" if isinstance(key, rsa.RSAPublicKey) else type(key).__name__
        raise Refused(
            f"expected the peer's key to be RSA of {_KEY_BITS[0]} to {_KEY_BITS[-1]} bits, but it is {kind}: "
            "move the identity file away, so that a new one is made, and ask for a new access token."
        )
    if key.public_numbers().e != _EXPONENT:
        raise Refused(f"expected the exponent of the peer's key to be {_EXPONENT}, but it is another")
    if key_bytes(key) != public_key:
        # The same key in two encodings would be two peers.
        raise Refused("the peer's key is not in canonical DER: expected the public key of its identity file")


def key_bytes(key: rsa.RSAPublicKey) -> bytes:
    """Return an RSA key as access tokens hold it: DER, SubjectPublicKeyInfo."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def peer_id_of(public_key: bytes) -> str:
    """Return the id that libp2p gives to the owner of an RSA key (DER, SubjectPublicKeyInfo).

    Source: github.com/libp2p/specs, peer-ids: base58 of the SHA-256 multihash of a protobuf of key type (0) and key.
    """
    length = len(public_key)
    varint = bytes([length]) if length < 128 else bytes([length % 128 | 128, length // 128])
    digest = hashlib.sha256(b"\x08\x00\x12" + varint + public_key).digest()
    number, text = int.from_bytes(b"\x12\x20" + digest), ""
    while number:
        number, index = divmod(number, 58)
        text = _BASE58[index] + text
    return text


def signer_of(data: bytes, public_key: str, signature: str) -> str:
    """Return the id of the peer whose key has signed `data`. Key (DER) and signature are in base64.

    Raises Refused if that key, which a peer may have, has not signed it.
    """
    if max(len(public_key), len(signature)) > MAX_SIGNATURE:
        raise Refused(f"a key or a signature has more than {MAX_SIGNATURE:,} letters")
    try:
        public, signed = (base64.b64decode(each, validate=True) for each in (public_key, signature))
    except ValueError as error:
        raise Refused(f"a key or a signature is not in base64 ({error})") from None
    check_key(public)
    try:
        serialization.load_der_public_key(public).verify(signed, data, *PEER_SIGNS)
    except InvalidSignature:
        raise Refused("it was changed after it was signed, or another key has signed it") from None
    return peer_id_of(public)
