"""What peers have signed of themselves, as one look of an observer found it, in a file that is replaced whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dalle_lib.files import BrokenFile, read_record, replace_file

SIGNED = "signed.json"
LETTERS = "latin-1"
"""Makes a letter of each byte: records are mostly text, which a file of text then holds as it is."""


class SignedRecord(NamedTuple):
    """A record of the hash table with all that its signature is of."""

    key: bytes
    """The hash of the key under which it lies."""
    subkey: bytes
    """The mark of its writer, packed."""
    value: bytes
    """What it tells, packed, and the signature."""
    expires: float
    """Seconds since 1970 until which it may be believed."""

    def as_told(self) -> list[str | float]:
        """Return it as what JSON can hold."""
        return [*(each.decode(LETTERS) for each in self[:3]), self.expires]

    @classmethod
    def of(cls, told: Sequence) -> "SignedRecord":
        """Return what `as_told` gave. Raises ValueError or TypeError for anything else."""
        *parts, expires = told
        if len(parts) != 3 or not all(isinstance(part, str) for part in parts) or not isinstance(expires, float):
            raise ValueError(f"expected key, subkey, value and time of a record, but got {told!r:.80}")
        return cls(*(part.encode(LETTERS) for part in parts), expires)


@dataclass(frozen=True, kw_only=True)
class SignedLook:
    """The signed records behind a `SwarmStatus` of the same time."""

    time: float
    records: dict[str, SignedRecord]
    """Those of the peers that the status has, and of those that have said that they leave, by their ids."""
    tokens: Mapping[str, bytes]
    """Access tokens of these peers, by their ids, in a run with members."""
    not_shown: int

    def write(self, folder: Path) -> None:
        """Replace the file in a peer's folder."""
        told = vars(self) | {
            "records": {peer: record.as_told() for peer, record in self.records.items()},
            "tokens": {peer: token.decode(LETTERS) for peer, token in self.tokens.items()},
        }
        with replace_file(folder / SIGNED) as unfinished:
            unfinished.write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "SignedLook | None":
        """Return what a peer wrote last; None before the first, and for a file that is broken."""
        try:
            return read_record(folder / SIGNED, cls._made_of, "A running observer writes it anew every few seconds.")
        except (FileNotFoundError, BrokenFile):
            return None

    @classmethod
    def _made_of(cls, told: dict) -> "SignedLook":
        records = {peer: SignedRecord.of(record) for peer, record in told["records"].items()}
        tokens = {peer: token.encode(LETTERS) for peer, token in told["tokens"].items()}
        return cls(**told | {"records": records, "tokens": tokens})
