"""Addresses of peers that this one has met: another way into the run, for when its first peers are away."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from dalle_lib.files import BrokenFile, read_record, replace_file
from dalle_lib.swarm.process.addresses import is_address, peer_in

logger = logging.getLogger(__name__)

MET = "met.json"
"""The file in a peer's folder that holds them."""
MAX_MET, MAX_OF_ONE = 32, 2
"""Addresses that are remembered, and those of one peer: whoever answered last comes first."""


def addresses_met(folder: Path) -> list[str]:
    """Return the addresses that the peer in this folder remembers, with the peers' ids at their ends; none without any.

    A file that is broken, as after a power cut, counts as none: nothing but a second way in is lost by it.
    """
    try:
        return read_record(folder / MET, _bounded, "It counts as empty, and is written anew.")
    except FileNotFoundError:
        return []
    except BrokenFile as broken:
        logger.warning("%s", broken)
        return []


def remember(folder: Path, addresses: Iterable[str]) -> None:
    """Put addresses at which peers have just answered before those that are remembered."""
    known = addresses_met(folder)
    kept = _bounded([*addresses, *known])
    if kept != known:
        with replace_file(folder / MET) as unfinished:
            unfinished.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _bounded(addresses: list[str]) -> list[str]:
    kept: list[str] = []
    for address in addresses:
        if not (isinstance(address, str) and is_address(address)):
            raise ValueError(f"expected addresses of peers, but got {address!r:.80}")
        of_one = sum(peer_in(other) == peer_in(address) for other in kept)
        if address not in kept and of_one < MAX_OF_ONE and len(kept) < MAX_MET:
            kept.append(address)
    return kept
