"""What a peer's record tells that others can check, in short texts.

These are the weights of some other peers in its last average, and a batch of its last epoch with the loss on it.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_WITNESSED, END, MAX_EVIDENCE = 6, 8, 160
"""Peers whose weights a record tells, letters of the end of an id that name each, and letters of the whole text."""
MAX_DRAWN = 10
"""Peers of whom a peer may tell, as many as one expects to be drawn among all: MAX_WITNESSED and some, because not all
were in the average."""
MAX_WEIGHT = 1e12
"""Beyond this no weight is believed."""
_BATCH = re.compile(r"([0-9]{1,9}) ([0-9]{1,15}) ([0-9]{1,6}) ([0-9]{1,6}\.[0-9]{1,6})")


@dataclass(frozen=True)
class BatchLoss:
    """A batch on which a peer has trained: those rows of the order that its id decides, and the mean loss on it."""

    epoch: int
    """The epoch of the parameters."""
    start: int
    """Rows of the order that were drawn before."""
    rows: int
    loss: float
    """As it trains: of text and codes, with what the run's card leaves out and corrupts."""

    def __str__(self) -> str:
        return f"{self.epoch} {self.start} {self.rows} {self.loss:.5f}"

    @classmethod
    def read(cls, text: str) -> "BatchLoss | None":
        """Return what a text says; None if it says nothing, or cannot be one."""
        match = _BATCH.fullmatch(text)
        return cls(int(match[1]), int(match[2]), int(match[3]), float(match[4])) if match else None


def witness(epoch: int, counted: Mapping[str, float], own: str) -> str:
    """Return the weights of some other peers in the average of an epoch, drawn by a hash; "" if there was no other.

    `counted` are the weights of all peers in it by their ids, of which `own` is this peer's. The hash says whom, and
    not the peer: or a few liars would always tell of the same one, and outnumber the honest who tell of it by chance.
    """
    others = [peer for peer, weight in counted.items() if peer != own and 0 < weight <= MAX_WEIGHT]
    some = sorted(others, key=lambda peer: _draw(epoch, own, peer))[:MAX_WITNESSED]
    return " ".join([str(epoch), *(f"{peer[-END:]}={counted[peer]:.6g}" for peer in some)]) if some else ""


def drawn(text: str, own: str, peer_count: int) -> str:
    """Return what a peer tells by `witness` without the weights of those that it cannot have drawn.

    `own` is its id, and `peer_count` says how many peers there are.
    """
    epoch, *weights = text.split(" ")
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) < 10):
        return ""
    largest = MAX_DRAWN / max(1, peer_count - 1)
    kept = [weight for weight in weights if _draw(int(epoch), own, weight.partition("=")[0]) <= largest]
    return " ".join([epoch, *kept]) if kept else ""


def _draw(epoch: int, own: str, other: str) -> float:
    """Return what chance says of a peer that another may tell of in an epoch, from 0 to 1; the lowest are drawn."""
    drawn_by = f"{epoch} {own[-END:]} {other[-END:]}".encode()
    return int.from_bytes(hashlib.sha256(drawn_by).digest()[:7]) / 256**7


def witnessed(text: str, peers: Iterable[str]) -> tuple[int, dict[str, float]] | None:
    """Return the epoch and the weights that `witness` has put into a text, by the ids of those among `peers`.

    None for a text that says nothing, or cannot be one.
    """
    by_end = {peer[-END:]: peer for peer in peers}
    told, *weights = text.split(" ")
    if not (told.isascii() and told.isdigit() and len(told) < 10 and 0 < len(weights) <= MAX_WITNESSED):
        return None
    found = {}
    for each in weights:
        end, _, value = each.partition("=")
        try:
            weight = float(value)
        except ValueError:
            return None
        if not (math.isfinite(weight) and 0 < weight <= MAX_WEIGHT):
            return None
        if end in by_end:
            found[by_end[end]] = weight
    return int(told), found
