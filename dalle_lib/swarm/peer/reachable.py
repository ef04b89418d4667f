"""Whether others can reach this machine: some that are there try, before this peer says what it is to the others.

One that nobody can reach would get parts to reduce all the same, and they would be missing in each round.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Sequence
from functools import partial

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2PHandlerError, PeerID

from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.first_peers import FAILURES
from dalle_lib.swarm.peer.greeter import Busy, dial_back
from dalle_lib.swarm.peer.metrics import LOOK_S
from dalle_lib.swarm.process.addresses import peer_in
from dalle_lib.swarm.process.local import LOCALHOST
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.records import writer_of

logger = logging.getLogger(__name__)

MAX_ASKED = 5
"""Peers that are asked, the run's first peers before others, so that where there are several none decides alone."""
TRIES, TRY_EVERY_S = 2, 6.0
"""How often they are asked while they reach nothing: a router that opens a port by itself needs seconds for it."""
BUSY_S = 3.0
"""Seconds after which a peer is asked again that dialled another one behind the same router, at most."""
ANSWER_S = 10.0
"""Seconds in which a peer must answer; its tries take half of them."""
ASKING_S = 60.0
"""Seconds after which it remains unknown."""


def is_asked(settings: PeerSettings) -> bool:
    """Return whether others are asked: the volunteer has not said how it is, and they are not all on this machine."""
    has_said = settings.client_mode is not None or settings.announce
    return settings.role == "trainer" and not has_said and settings.host != LOCALHOST


def ask_others(dht: hivemind.DHT, card: RunCard, settings: PeerSettings) -> dict[str, bool | None]:
    """Return `reached`, whether most of those that are asked can connect to this machine, and `is_client`.

    `reached` is None where nobody can say, or as many can as cannot, as in a network of one's own with a first peer
    elsewhere. `is_client` says that this peer better only connects to others: they cannot reach it, and somebody else
    is there who reduces. Where nobody is, it may still be the best: two in one home reach each other, though none
    outside reaches them.
    """
    first = [peer_in(address) for address in (*card.initial_peers, *settings.initial_peers)]
    try:
        reached = dht.run_coroutine(partial(_ask, first=first), return_future=True).result(ASKING_S)
        is_client = reached is False and _somebody_reduces(dht, card)
    except (*FAILURES, TimeoutError) as error:
        logger.warning("it is not known whether others reach this machine: %s", in_one_line(error))
        reached, is_client = None, False
    return {"reached": reached, "is_client": is_client}


def _somebody_reduces(dht: hivemind.DHT, card: RunCard) -> bool:
    """Return whether a peer is there that says that others can reach it."""
    found = dht.get(f"{card.key}_progress", latest=True, return_future=True).result(LOOK_S)
    records = found.value if found is not None and isinstance(found.value, dict) else {}
    others = [entry.value for mark, entry in records.items() if writer_of(mark) != str(dht.peer_id)]
    return any(isinstance(told, dict) and told.get("client_mode") is False for told in others)


async def _ask(_dht: hivemind.DHT, node: DHTNode, first: Sequence[str]) -> bool | None:
    """Ask those that are connected. This runs in the hash table's process."""
    connected = [peer.peer_id for peer in await node.p2p.list_peers()]
    random.shuffle(connected)
    asked = sorted(connected, key=lambda peer: str(peer) not in first)[:MAX_ASKED]
    for left in reversed(range(TRIES)):
        until = time.monotonic() + TRY_EVERY_S
        answers = await asyncio.gather(*(_reached_by(node, peer) for peer in asked))
        can, cannot = answers.count(True), answers.count(False)
        logger.info("of %d peers, %d can connect to this machine, and %d cannot", len(asked), can, cannot)
        if can >= cannot:
            return True if can > cannot else None
        if left:
            await asyncio.sleep(until - time.monotonic())
    return False


async def _reached_by(node: DHTNode, peer: PeerID) -> bool | None:
    """Return whether a peer can connect to this machine; None if it does not say so."""
    addresses = map(str, await node.p2p.get_visible_maddrs(latest=True))
    ports = sorted({int(port) for address in addresses for port in re.findall(r"/tcp/(\d+)", address)})
    for _ in range(TRIES):
        try:
            async with asyncio.timeout(ANSWER_S):
                reached = (await dial_back(node.p2p, peer, ports))["reached"]
            return None if reached is None else reached > 0
        except P2PHandlerError as error:  # a stranger may answer anything
            if Busy.__name__ not in str(error):
                break
            await asyncio.sleep(random.uniform(BUSY_S / 2, BUSY_S))
        except (*FAILURES, TimeoutError):
            break
    return None
