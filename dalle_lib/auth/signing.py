"""What a run's authority signs: fields as bytes, and keys that sign in the place of the authority's own."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dalle_lib.peer_keys import Refused

KEY_BYTES = 32
"""Size of an Ed25519 public key."""
MAX_NAME = 200
"""Letters of the name of a user or of a run."""
_NAME = b"dalle-lib delegation "
_MAGIC = _NAME + b"1\n"
_FIELDS = 4
_MAX_BYTES = 2048
_START = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_S = 253_402_300_799
"""The last second of the year 9999, the last year of datetime."""


@dataclass(frozen=True)
class Delegation:
    """Lets another key sign for a run's authority until a time; the authority's own key, the root, signs it.

    So the root key may lie offline, and what one signing key can do wrong ends with its delegation.
    Bytes: the line ``dalle-lib delegation 1``, then run, public key, seconds since 1970 when it expires, and signature,
    as `joined` writes them.
    """

    run: str
    public_key: bytes
    """The Ed25519 key that may sign, 32 bytes."""
    expires: datetime
    """In UTC, to the second. Nothing that the key signs may be valid for longer."""
    signature: bytes = b""
    """The root's Ed25519 signature of `signed_bytes()`; empty before it signs."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_time(self.expires)
        if len(self.public_key) != KEY_BYTES:
            raise ValueError(f"expected a signing key of {KEY_BYTES} bytes, but it has {len(self.public_key)}")

    def signed_bytes(self) -> bytes:
        """Return the bytes that the root signs; no two different delegations share them."""
        return _MAGIC + joined(self.run.encode(), self.public_key, as_seconds(self.expires))

    def to_bytes(self) -> bytes:
        """Return the delegation as bytes, signature included."""
        return self.signed_bytes() + joined(self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Delegation":
        """Return the delegation in `to_bytes()`. Raises ValueError for anything else."""
        what = "a delegation of an authority"
        run, public_key, seconds, signature = split(unwrapped(data, _NAME, _MAGIC, _MAX_BYTES, what), _FIELDS, what)
        return cls(run.decode(), public_key, from_seconds(seconds, what), signature)

    def signed(self, signature: bytes) -> "Delegation":
        """Return this delegation with that signature."""
        return replace(self, signature=signature)


def check_signed(
    what: str, signed: bytes, signature: bytes, delegation: Delegation | None, expires: datetime, root: bytes, run: str
) -> None:
    """Return None if `signed` carries the signature of a run's authority, or of a key to which it delegated.

    `root` is the authority's own key, 32 bytes, as the run card names it; `expires` is when what was signed ends.
    Raises Refused otherwise; `what` says in it what was signed.
    """
    remedy = "it comes from another, or was altered. Ask for one where the run says."
    key = root
    if delegation is not None:
        if not _is_by(root, delegation.signature, delegation.signed_bytes()):
            raise Refused(f"{what} is signed by a key to which the authority of {run!r} has not delegated: {remedy}")
        if delegation.run != run:
            raise Refused(f"{what} is signed by a key that may sign for the run {delegation.run!r}, not for {run!r}")
        if expires > delegation.expires:
            raise Refused(
                f"{what} is valid until {expires:%Y-%m-%d %H:%M:%S} UTC, longer than its signing key may sign for "
                f"({delegation.expires:%Y-%m-%d %H:%M:%S} UTC): ask for a new one."
            )
        key = delegation.public_key
    if not _is_by(key, signature, signed):
        raise Refused(f"{what} is not signed by the authority of {run!r}: {remedy}")


def _is_by(key: bytes, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def signed_text(purpose: str, run: str, nonce: str, time: int) -> bytes:
    """Return what a peer signs to a server; `nonce` is the handle where a device flow is asked for its result."""
    return f"dalle-lib authority 1\n{purpose}\n{run}\n{nonce}\n{time}".encode()


def joined(*fields: bytes) -> bytes:
    """Return fields one after the other, each after its length in 4 bytes, big-endian."""
    return b"".join(len(field).to_bytes(4) + field for field in fields)


def split(data: bytes, count: int | None, what: str) -> list[bytes]:
    """Return the fields that `joined` wrote, as many as `count` says, or all. Raises ValueError if they do not fit."""
    fields = []
    while len(fields) != count and (data or count is not None):
        size = int.from_bytes(data[:4])
        if len(data) < 4 + size or len(data) < 4:
            raise ValueError(f"{what} ends within its field {len(fields) + 1}{f' of {count}' if count else ''}")
        fields.append(data[4 : 4 + size])
        data = data[4 + size :]
    if data:
        raise ValueError(f"{what} is followed by {len(data)} bytes that do not belong to it")
    return fields


def unwrapped(data: bytes, name: bytes, magic: bytes, max_bytes: int, what: str) -> bytes:
    """Return what follows the first line. Raises ValueError if it is too long, or begins with another line."""
    if len(data) > max_bytes:
        raise ValueError(f"expected {what} of at most {max_bytes} bytes, but {len(data)} came")
    if not data.startswith(magic):
        came = "one of another version of this program" if data.startswith(name) else f"{data[:30]!r}"
        raise ValueError(f"expected {what}, but it is {came}: ask the run's authority for a new one")
    return data[len(magic) :]


def as_seconds(time: datetime) -> bytes:
    """Return a time as seconds since 1970, in 8 bytes, big-endian."""
    return int((time - _START).total_seconds()).to_bytes(8)


def from_seconds(seconds: bytes, what: str) -> datetime:
    """Return the time that `as_seconds` wrote. Raises ValueError for anything else."""
    if len(seconds) != 8 or int.from_bytes(seconds) > _MAX_S:
        raise ValueError(f"expected the time when {what} expires, but it holds {seconds[:30]!r}")
    return _START + timedelta(seconds=int.from_bytes(seconds))


def require_time(time: datetime) -> None:
    """Raise ValueError for a time that `as_seconds` cannot write as it is."""
    if time.utcoffset() != timedelta(0) or time.microsecond or time < _START:
        raise ValueError(f"expected a time in UTC since 1970, to the second, not {time!r}")


def require_name(name: str, text: str) -> None:
    """Raise ValueError for text that is no user's or run's name; `name` says whose it should be."""
    if not text or not text.isprintable() or len(text) > MAX_NAME:
        raise ValueError(f"expected the {name} to be 1 to {MAX_NAME} printable characters, not {text!r}")
