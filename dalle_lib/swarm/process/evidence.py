"""What a peer's record tells that others can check: the weights of some of the others in its last average."""

import math
import random
from collections.abc import Iterable, Mapping

MAX_WITNESSED, END, MAX_EVIDENCE = 6, 8, 160
"""Peers whose weights a record tells, letters of the end of an id that name each, and letters of the whole text."""
MAX_WEIGHT = 1e12
"""Beyond this no weight is believed."""


def witness(epoch: int, counted: Mapping[str, float], own: str) -> str:
    """Return the weights of some other peers in the average of an epoch, drawn by chance; "" if there was no other.

    `counted` are the weights of all peers in it by their ids, of which `own` is this peer's.
    """
    others = [peer for peer, weight in counted.items() if peer != own and 0 < weight <= MAX_WEIGHT]
    some = random.sample(others, min(MAX_WITNESSED, len(others)))
    return " ".join([str(epoch), *(f"{peer[-END:]}={counted[peer]:.6g}" for peer in some)]) if some else ""


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
