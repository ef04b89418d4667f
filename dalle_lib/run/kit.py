"""Which kit a peer of a run has: what decides whether it can meet others, and what to do where it cannot."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from dalle_lib.version import __version__

if TYPE_CHECKING:
    from dalle_lib.run.card import RunCard

MAX_BYTES = 1000
"""Longest message that tells a kit; a longer one is refused unread."""
MAX_PROTOCOL = 10**6
_FINGERPRINT, _VERSION = re.compile("[0-9a-f]{16}"), re.compile("[0-9][0-9A-Za-z.+]{0,31}")
"""A version has no sign that a shell would obey: volunteers are told to type it."""


@dataclass(frozen=True)
class Kit:
    """What decides whether two peers of a run's name can meet, and what to install where they cannot."""

    fingerprint: str
    """The fingerprint of the peer's card."""
    protocol: int
    kit: str
    """The version of this package."""

    @classmethod
    def own(cls, card: "RunCard") -> "Kit":
        """Return this peer's."""
        return cls(card.fingerprint, card.protocol, __version__)

    @classmethod
    def told(cls, message: bytes, run: str) -> "Kit":
        """Return what a peer has told of its kit for this run; fields of later versions are passed over.

        Raises ValueError if it is too long, ill-formed or about another run.
        """
        if len(message) > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES} bytes of a kit, but it has {len(message):,}")
        try:
            told = json.loads(message)
        except RecursionError:
            told = None
        match told:
            case {"run": name, "fingerprint": str() as fingerprint, "protocol": int() as protocol, "kit": str() as kit}:
                if name != run:
                    raise ValueError(f"expected a kit for this run, but got {message[:80]!r}")
                is_protocol = type(protocol) is int and 0 <= protocol <= MAX_PROTOCOL
                if is_protocol and _FINGERPRINT.fullmatch(fingerprint) and _VERSION.fullmatch(kit):
                    return cls(fingerprint, protocol, str(Version(kit)))
        raise ValueError(f"expected a kit, but got {message[:80]!r}")

    def as_told(self, run: str) -> bytes:
        """Return what `told` reads."""
        return json.dumps({"run": run, **asdict(self)}).encode()

    def way_to(self, other: "Kit", run: str) -> str:
        """Return a line for a newcomer with this kit to a run that has another one: what differs, and what to do."""
        if other.protocol == self.protocol:
            return (
                f"the peers of run {run!r} that answer have another card than you, with dalle-lib {other.kit}, so you "
                "would never meet them: ask its organiser for it; an embedded run's comes with their version."
            )
        found = f"run {run!r} trains with dalle-lib {other}, you have {self}"
        if other.protocol > self.protocol:
            return f"{found}: update with `pip install --upgrade dalle-lib`, and start again."
        return f'{found}: ask its organiser to update, or install theirs, `pip install "dalle-lib=={other.kit}"`.'

    def apart_from(self, other: "Kit") -> str:
        """Return a line for a peer that takes part with this kit, of one of the run's name with another kit."""
        if other.protocol == self.protocol:
            return "a peer of this run's name has another card than this one: they never meet"
        older = "that one" if other.protocol < self.protocol else "this one"
        return f"a peer of this run's name has dalle-lib {other}, this one {self}: they never meet, so update {older}"

    def kept_out_by(self, kits: Sequence["Kit | None"]) -> "Kit | None":
        """Return another kit with which all the peers that were asked train; None if one has this, or does not say.

        One that says nothing may be a busy one with the same kit, so this peer goes on then.
        """
        is_found = any(kit is None or kit.fingerprint == self.fingerprint for kit in kits)
        return None if is_found or not kits else kits[0]

    def __str__(self) -> str:
        return f"{self.kit} (protocol {self.protocol})"
