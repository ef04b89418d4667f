"""A receipt of what a peer has given to a run, signed by its key, and confirmed by the run's monitor."""

import base64
import json
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from dalle_lib.amounts import duration
from dalle_lib.auth.keys import PeerKey
from dalle_lib.files import BrokenFile, read_record, replace_file, write_record
from dalle_lib.peer_keys import signer_of
from dalle_lib.run import RunCard, hub_token_for
from dalle_lib.run.newest import CONFIRMED, file_of_monitor
from dalle_lib.swarm.process.events import MAX_TIME, read_starts, rounds_with_others
from dalle_lib.swarm.process.folder import IDENTITY, SETTINGS, run_of
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.settings import MAX_NAME, PeerSettings, is_name
from dalle_lib.swarm.process.standing import Standing

ANEW = "Ask for it anew from who showed it."
_NOT_SIGNED = ("signature", "confirmation")
_CANNOT_BE = "its name, run or share cannot be so"


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What the holder of a peer's key says, and nobody can change."""

    PURPOSE: ClassVar[bytes]
    """What is signed begins with this, so that the signature serves nothing else."""
    run: str
    fingerprint: str
    """What all peers of the run agree on."""
    peer_id: str
    """Of whom it tells."""
    first_epoch: int
    last_epoch: int
    share: float
    """From 0 to 1."""
    samples: int
    written: float
    """How it was then: seconds since 1970."""
    public_key: str = ""
    """The signer's public key in base64: DER, SubjectPublicKeyInfo."""
    signature: str = ""
    """Signature of all else by that key, in base64."""

    def signed_bytes(self) -> bytes:
        """Return what is signed."""
        told = {name: value for name, value in asdict(self).items() if name not in _NOT_SIGNED}
        return self.PURPOSE + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    def signed(self, key: PeerKey) -> "Signed":
        """Return it with the signature of a key."""
        told = replace(self, public_key=base64.b64encode(key.public_key).decode())
        return replace(told, signature=key.sign(told.signed_bytes()))

    def require_signed_by(self, signers: Collection[str], whose: str) -> None:
        """Return None if one of the peers `signers` has signed it. Raises ValueError otherwise, with `whose` it is."""
        try:
            if signer_of(self.signed_bytes(), self.public_key, self.signature) not in signers:
                raise ValueError(f"the key is not that of {whose}")
        except ValueError as error:
            raise ValueError(f"the receipt cannot be checked: {error}.") from error

    @classmethod
    def made_of(cls, told: Mapping) -> "Signed":
        """Return what a JSON object says. Raises ValueError for what cannot be so."""
        made = {}
        for field in fields(cls):
            if field.type not in (str, int, float):
                continue
            value = made[field.name] = told.get(field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME
            is_right = {
                str: isinstance(value, str) and value.isprintable() and len(value) <= 1000,
                int: is_number and isinstance(value, int),
                float: is_number and math.isfinite(value),
            }[field.type]
            if not is_right:
                raise ValueError(f"{field.name} cannot be {value!r:.60}")
        if made["share"] > 1 or len(made["run"]) > MAX_NAME:
            raise ValueError(_CANNOT_BE)
        return cls(**made)


@dataclass(frozen=True, kw_only=True)
class Confirmation(Signed):
    """What a run's monitor has credited a peer with: its share is that of all that was averaged while it was there.

    What peers claim beyond the clock, the samples of an epoch or what others saw is not credited.
    """

    PURPOSE: ClassVar[bytes] = b"dalle-lib confirmation 1\n"
    user: str
    """Whose access token the peer has, or, in a run for everybody, what it calls itself."""
    compute_s: float

    def __str__(self) -> str:
        return (
            f"Confirmed by the run's monitor: {self.share:.1%} of all that was averaged in epochs {self.first_epoch:,} "
            f"to {self.last_epoch:,}, {self.samples:,} samples, {duration(self.compute_s)} of computing."
        )


@dataclass(frozen=True, kw_only=True)
class Receipt(Signed):
    """What one peer has given, by its own account, and what the run's monitor confirms of it.

    The peer's signature proves that whoever holds its key says so, and that nobody has changed it. The epochs are those
    of the first and the last average with others in which its gradient counted; the share is its mean in these.
    """

    PURPOSE: ClassVar[bytes] = b"dalle-lib receipt 1\n"
    name: str
    rounds: int
    """Averages with others in which its gradient counted."""
    seconds: float
    """How long it took part."""
    confirmation: Confirmation | None = None

    def check(self, monitors: Collection[str] = ()) -> None:
        """Return None if the peer's key has signed this, and one of the peers `monitors` what confirms it, if any does.

        Without `monitors`, as a run's card names them, it is not known who confirms. Raises ValueError.
        """
        self.require_signed_by([self.peer_id], "the peer that it names")
        if self.confirmation is not None:
            same = ("run", "fingerprint", "peer_id")
            if any(getattr(self.confirmation, name) != getattr(self, name) for name in same):
                raise ValueError("the receipt cannot be checked: what confirms it is of another peer or run.")
            if monitors:
                self.confirmation.require_signed_by(monitors, "a monitor that the run's card names")

    def save(self, file: Path) -> None:
        """Write the receipt as JSON."""
        write_record(file, self)

    @classmethod
    def load(cls, file: Path) -> "Receipt":
        """Return the receipt in a file, unchecked. Raises FileNotFoundError or BrokenFile if it cannot be read."""
        return read_record(file, cls.made_of, ANEW)

    @classmethod
    def made_of(cls, told: Mapping) -> "Receipt":
        """Return what a JSON object says. Raises ValueError for what cannot be so."""
        receipt, confirmation = super().made_of(told), told.get("confirmation")
        if not is_name(receipt.name):
            raise ValueError(_CANNOT_BE)
        return replace(receipt, confirmation=None if confirmation is None else Confirmation.made_of(confirmation))

    def __str__(self) -> str:
        epochs = f"epochs {self.first_epoch:,} to {self.last_epoch:,}"
        told = (
            f"{self.name} gave {self.share:.1%} of the averages of {epochs} of {self.run} in which it counted "
            f"({self.rounds:,}): {self.samples:,} samples, {duration(self.seconds)}."
        )
        return told if self.confirmation is None else f"{told}\n{self.confirmation}"


def receipt_of(peer: Peer) -> Receipt:
    """Return the signed receipt of the peer in a folder, over all of its starts, which nobody has confirmed yet.

    Raises ValueError if none of its gradients has counted in an average with others yet, or the folder is no peer's.
    """
    bound, totals = run_of(peer.folder), Standing.of(peer).totals
    events = [event for start in read_starts(peer.folder) for event in start]
    key = PeerKey.load(peer.folder / IDENTITY)
    own = {event["epoch"]: event["shares"][key.peer_id] for event in rounds_with_others(events, key.peer_id)}
    if bound is None or not own:
        raise ValueError(
            f"expected a peer whose gradient has counted, but none of {peer.folder} has yet: it counts at the end of "
            "the first epoch in which it takes part with others."
        )
    names = [event["name"] for event in events if event["event"] == "joined"]
    return Receipt(
        run=bound.name, fingerprint=bound.fingerprint, peer_id=key.peer_id, name=names[-1],
        first_epoch=min(own), last_epoch=max(own), rounds=len(own), share=sum(own.values()) / len(own),
        samples=totals.samples, seconds=round(totals.seconds, 1), written=round(time.time()),
    ).signed(key)  # fmt: skip


def confirmed(receipt: Receipt, peer: Peer) -> Receipt:
    """Return the receipt of a peer with what the run's monitor confirms of it; as it is if that is nothing yet.

    Raises ValueError if none of the monitors that the run's card names has signed that, or it is broken, and
    ConnectionError if the Hub cannot be asked.
    """
    run = PeerSettings.load(peer.folder / SETTINGS).run
    card = RunCard.load(run, hub_token_for(run))
    if card.checkpoints is None or not card.monitors:
        return receipt
    try:
        file = file_of_monitor(card, CONFIRMED)
    except ValueError:
        return receipt  # none was sent yet
    confirmations = read_record(file, confirmations_in, "The run's monitor writes it anew.")
    found = next((each for each in confirmations if each.peer_id == receipt.peer_id), None)
    with_it = replace(receipt, confirmation=found)
    with_it.check(card.monitors)
    return with_it


def confirmations_in(told: Mapping) -> list[Confirmation]:
    """Return what a monitor's file CONFIRMED says, whose key stands there once. Raises ValueError for another."""
    return [Confirmation.made_of({**each, "public_key": told["public_key"]}) for each in told["peers"]]


def write_confirmations(file: Path, confirmations: Iterable[Confirmation], key: PeerKey) -> None:
    """Write what a monitor confirms, signed by its key. What is in the file already keeps its signature."""
    try:
        known_ones = read_record(file, confirmations_in, "It is written anew.")
    except (FileNotFoundError, BrokenFile):
        known_ones = []
    before, peers = {each.peer_id: each for each in known_ones if each.public_key == _base64(key)}, []
    for each in confirmations:
        known = before.get(each.peer_id)
        is_same = known is not None and replace(known, public_key="", signature="") == each
        told = asdict(known if is_same else each.signed(key))
        peers.append({name: value for name, value in told.items() if name != "public_key"})
    with replace_file(file) as unfinished:
        unfinished.write_text(json.dumps({"public_key": _base64(key), "peers": peers}) + "\n", encoding="utf-8")


def _base64(key: PeerKey) -> str:
    return base64.b64encode(key.public_key).decode()
