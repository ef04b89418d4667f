"""Secrets of a device flow, encrypted with its handle, which the server itself does not keep.

So the codes can be read only while the peer asks for its result: neither the data base nor a backup gives them away.
"""

import hashlib
import json

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = bytes(12)
"""Each handle seals once, so no nonce is needed to keep two messages apart."""


def sealed(handle: str, secrets: dict[str, str]) -> bytes:
    """Return secrets, readable with the handle alone."""
    return AESGCM(_key(handle)).encrypt(_NONCE, json.dumps(secrets).encode(), None)


def unsealed(handle: str, data: bytes) -> dict[str, str]:
    """Return what `sealed` has hidden. Raises cryptography's InvalidTag for another handle."""
    return json.loads(AESGCM(_key(handle)).decrypt(_NONCE, data, None))


def _key(handle: str) -> bytes:
    return hashlib.sha256(b"seal " + handle.encode()).digest()
