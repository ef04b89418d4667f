"""A receipt of what a peer has given to a run, signed by its key, which anybody can check."""

import base64
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dalle_lib.auth.keys import PeerKey
from dalle_lib.files import read_record, replace_file
from dalle_lib.peer_keys import signer_of
from dalle_lib.swarm.process.events import MAX_TIME, read_starts
from dalle_lib.swarm.process.folder import IDENTITY, run_of
from dalle_lib.swarm.process.join import Peer
from dalle_lib.swarm.process.settings import MAX_NAME, is_name
from dalle_lib.swarm.process.standing import Standing

PURPOSE = b"dalle-lib receipt 1\n"
"""What is signed begins with this, so that the signature serves nothing else."""
ANEW = "Ask for it anew from who showed it."


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one peer has given, by its own account.

    Its signature proves that whoever holds the peer's key says so, and that nobody has changed it. That it is true is
    shown by the run's monitor, which has seen the peer: its status names the same peer with what it was credited with.
    """

    run: str
    fingerprint: str
    """What all peers of the run agree on."""
    peer_id: str
    name: str
    first_epoch: int
    last_epoch: int
    """The epochs of the first and the last average with others in which its gradient counted."""
    rounds: int
    """Averages with others in which it counted."""
    share: float
    """Its mean share of these averages, from 0 to 1."""
    samples: int
    """Samples that it has computed."""
    seconds: float
    """How long it took part."""
    written: float
    """When this was written: seconds since 1970."""
    public_key: str
    """Its public key in base64: DER, SubjectPublicKeyInfo."""
    signature: str = ""
    """Signature of all else by that key, in base64."""

    def signed_bytes(self) -> bytes:
        """Return what the peer signs."""
        told = {name: value for name, value in asdict(self).items() if name != "signature"}
        return PURPOSE + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    def check(self) -> None:
        """Return None if the peer's key has signed this. Raises ValueError otherwise."""
        try:
            if signer_of(self.signed_bytes(), self.public_key, self.signature) != self.peer_id:
                raise ValueError("the key is not that of the peer that it names")
        except ValueError as error:
            raise ValueError(f"the receipt cannot be checked: {error}.") from error

    def save(self, file: Path) -> None:
        """Write the receipt as JSON."""
        with replace_file(file) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "Receipt":
        """Return the receipt in a file, unchecked. Raises FileNotFoundError or BrokenFile if it cannot be read."""
        return read_record(file, cls._made_of, ANEW)

    @classmethod
    def _made_of(cls, told: dict) -> "Receipt":
        for field in fields(cls):
            value = told.get(field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME
            is_right = {
                str: isinstance(value, str) and value.isprintable() and len(value) <= 1000,
                int: is_number and isinstance(value, int),
                float: is_number and math.isfinite(value),
            }[field.type]
            if not is_right:
                raise ValueError(f"{field.name} cannot be {value!r:.60}")
        if not is_name(told["name"]) or told["share"] > 1 or len(told["run"]) > MAX_NAME:
            raise ValueError("its name, run or share cannot be so")
        return cls(**{field.name: told[field.name] for field in fields(cls)})

    def __str__(self) -> str:
        epochs = f"epochs {self.first_epoch:,} to {self.last_epoch:,}"
        return (
            f"{self.name} gave {self.share:.1%} of the averages of {epochs} of {self.run} in which it counted "
            f"({self.rounds:,}): {self.samples:,} samples, {self.seconds / 3600:.1f} hours."
        )


def receipt_of(peer: Peer) -> Receipt:
    """Return the signed receipt of the peer in a folder, over all of its starts.

    Raises ValueError if none of its gradients has counted in an average with others yet, or the folder is no peer's.
    """
    bound, totals = run_of(peer.folder), Standing.of(peer).totals
    events = [event for start in read_starts(peer.folder) for event in start]
    key = PeerKey.load(peer.folder / IDENTITY)
    rounds = [event for event in events if event["event"] == "averaged" and len(event["shares"]) > 1]
    own = {event["epoch"]: event["shares"][key.peer_id] for event in rounds if event["shares"].get(key.peer_id)}
    if bound is None or not own:
        raise ValueError(
            f"expected a peer whose gradient has counted, but none of {peer.folder} has yet: it counts at the end of "
            "the first epoch in which it takes part with others."
        )
    names = [event["name"] for event in events if event["event"] == "joined"]
    receipt = Receipt(
        run=bound.name, fingerprint=bound.fingerprint, peer_id=key.peer_id, name=names[-1],
        first_epoch=min(own), last_epoch=max(own), rounds=len(own), share=sum(own.values()) / len(own),
        samples=totals.samples, seconds=round(totals.seconds, 1), written=round(time.time()),
        public_key=base64.b64encode(key.public_key).decode(),
    )  # fmt: skip
    return Receipt(**asdict(receipt) | {"signature": key.sign(receipt.signed_bytes())})
