"""The bodies of requests to the authority, and the signatures that prove possession of a peer's key."""

import asyncio
import base64
import binascii
import hashlib
from typing import Annotated, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from dalle_lib.auth.server.refusals import AGAIN, Refusal
from dalle_lib.peer_keys import PEER_SIGNS, Refused, check_key

MAX_BODY_BYTES = 16 << 10
BODY_S = 10.0
"""Seconds in which a whole body must have come."""
CLOCK_S = 60
"""Seconds that a peer's clock may differ from the server's."""
Asked = TypeVar("Asked", bound=BaseModel)


def _is_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Name = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_is_printable)]


class Signed(BaseModel):
    """What every request that gets an access token holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: int = Field(ge=0, lt=2**40)
    """The sender's clock: seconds since 1970."""
    signature: str = Field(max_length=1024)
    """In base64, of `signed_text`."""


class Renewal(Signed):
    """Asks for a new access token in the place of another one of the same peer."""

    nonce: str = Field(pattern=r"^[\x21-\x7e]{8,128}$")
    access_token: str = Field(max_length=8192)
    """In base64."""


class Join(Signed):
    """Asks for the first access token of a peer, beside a Hub token."""

    nonce: str = Field(pattern=r"^[\x21-\x7e]{8,128}$")
    public_key: str = Field(max_length=2048)
    """The peer's RSA key in base64: DER, SubjectPublicKeyInfo."""
    peer_name: Name
    platform: Annotated[str, Field(max_length=64), AfterValidator(_is_printable)] = ""


async def read(request: Request, kind: type[Asked]) -> Asked:
    """Return the JSON body of a request. Raises Refusal if it is too long, too slow, or another."""
    data = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_BODY_BYTES:
                    raise Refusal(
                        "bad_request", f"expected at most {MAX_BODY_BYTES:,} bytes, but more came.", "Send less."
                    )
    except ClientDisconnect:
        raise Refusal("bad_request", "expected a whole request, but its sender went away.", AGAIN) from None
    except TimeoutError:
        raise Refusal("bad_request", f"expected a whole request within {BODY_S:g} s.", AGAIN) from None
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:  # its text repeats what came, which may be secret
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])):.60}: {one['type']}" for one in error.errors()[:5])
        raise Refusal(
            "bad_request", f"expected another JSON object: {wrong}.", "Update dalle-lib, or ask the organiser to."
        ) from None


def from_base64(text: str, what: str, code: str) -> bytes:
    """Return the bytes that `text` holds in base64. Raises Refusal with `code` for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise Refusal(code, f"expected {what} in base64.", "Update dalle-lib, or ask the organiser to.") from None


def peer_key(text: str) -> bytes:
    """Return a peer's public key from base64. Raises Refusal if no peer may have it."""
    key = from_base64(text, "a peer's public key", "bad_key")
    try:
        check_key(key)
    except Refused as error:
        raise Refusal("bad_key", str(error), "Move the peer's identity file away, and a new one is made.") from error
    return key


def check_clock(time: int, now: float) -> None:
    """Return None if a sender's clock agrees with ours. Raises Refusal otherwise, which tells our time."""
    if abs(time - now) > CLOCK_S:
        raise Refusal(
            "clock_off",
            f"expected a clock within {CLOCK_S} s of the authority's, but yours is {abs(round(time - now))} s "
            f"{'ahead' if time > now else 'behind'}.",
            "Set this computer's clock, by the internet if it can, and try again.",
            time=int(now),
        )


def check_signature(public_key: bytes, signature: str, signed: bytes) -> str:
    """Return a name for a signature, by which it is known when it comes again. Raises Refusal if it is false."""
    given = from_base64(signature, "a signature", "bad_signature")
    try:
        serialization.load_der_public_key(public_key).verify(given, signed, *PEER_SIGNS)
    except InvalidSignature:
        raise Refusal(
            "bad_signature",
            "expected a signature by the peer's key over this request, but it is none.",
            "Update dalle-lib; if it stays so, move the peer's identity file away, and a new one is made.",
        ) from None
    return hashlib.sha256(given).hexdigest()
