"""Which kit a peer has, as it tells whoever asks for its run by name: so peers that can never meet know of each other.

Peers look each other up under their card's fingerprint, so those of another protocol, or with another card, find none
of the others, and would train on apart in silence. What a peer answers here depends on the run's name alone. Only the
run's first peers, and peers met before, are asked, each of itself, over connections that prove their ids: what anybody
else says keeps nobody out, and nothing is stored.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import hivemind
from google.protobuf.message import DecodeError
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, P2PContext, P2PHandlerError, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.kit import Kit
from dalle_lib.swarm.process.addresses import peer_in
from dalle_lib.swarm.process.events import EventLog

logger = logging.getLogger(__name__)

MAX_ASKED = 8
"""Peers that are asked, in the order of their addresses."""
ANSWER_S = 10.0
"""Seconds in which a peer must answer; one that does not is not counted."""
ASK_EVERY_S = 600.0
"""Seconds between two questions to a first peer: it may have another kit when it comes back."""
MAX_TOLD = 3
"""Other kits that are told in events for as long as a peer runs: of whoever has asked, as strangers invent some, and
of first peers."""
_FAILURES = (P2PHandlerError, P2PDaemonError, OSError, EOFError, ValueError, DecodeError)
"""What questions end with: no answer, none that can be read, or a p2pd that does not do what it is asked."""


class Kits(ServicerBase):
    """Answers whoever asks for this peer's run by its name, and tells the volunteer of other kits, each once."""

    def __init__(self, run: str, own: Kit, events: EventLog) -> None:
        self._run, self._own, self._events = run, own, events
        self._known = {own.fingerprint}
        self._told = Counter()

    async def rpc_kit(self, request: ExpertRequest, context: P2PContext) -> ExpertResponse:
        """Answer with this peer's kit. Raises ValueError for none of the same run, which hivemind tells the caller."""
        other = Kit.told(request.metadata, self._run)
        self._tell(other, "who asked")
        return ExpertResponse(metadata=self._own.as_told(self._run))

    async def ask(self, p2p: P2P, first_peers: Sequence[str]) -> None:
        """Ask those of the first peers, by their ids, that are connected."""
        connected = {str(peer.peer_id) for peer in await p2p.list_peers()}
        there = [peer for peer in dict.fromkeys(first_peers) if peer in connected]
        for other in await kits_of(p2p, there, self._own, self._run):
            if other is not None:
                self._tell(other, "first peers")

    def _tell(self, other: Kit, whose: str) -> None:
        if other.fingerprint in self._known or self._told[whose] >= MAX_TOLD:
            return
        self._known.add(other.fingerprint)
        self._told[whose] += 1
        with contextlib.suppress(OSError):  # a full disk keeps whoever asks from no answer
            self._events.write("problem", peer="", problem=self._own.apart_from(other))


async def tell_kit(dht: hivemind.DHT, node: DHTNode, *, run: str, own: Kit, folder: Path) -> None:
    """Tell who asks which kit this peer has, and ask its first peers now and then. Runs in the hash table's process."""
    node.tells_kit = asyncio.current_task()  # asyncio holds tasks weakly, and hivemind holds none
    kits = Kits(run, own, EventLog(folder))
    await kits.add_p2p_handlers(node.p2p)
    while node.is_alive:
        try:
            await kits.ask(node.p2p, list(map(peer_in, dht.first_peers)))
        except _FAILURES as error:
            logger.info("the first peers could not be asked for their kits, and will be again: %s", in_one_line(error))
        await asyncio.sleep(ASK_EVERY_S)


def kits_at(addresses: Iterable[str], card: RunCard) -> list[Kit | None]:
    """Return the kit of each peer that is at these well-formed addresses, None for one that does not tell it.

    Peers of versions before do not tell it. A p2pd with an id of its own is started to ask them, and ended: no swarm is
    joined.
    """
    try:
        return asyncio.run(_kits_from_outside(list(addresses)[:MAX_ASKED], card))
    except _FAILURES as error:
        logger.info("the run's first peers could not be asked for their kits: %s", in_one_line(error))
        return []


async def _kits_from_outside(addresses: Sequence[str], card: RunCard) -> list[Kit | None]:
    p2p = await P2P.create(dht_mode="client", auto_nat=False, nat_port_map=False)
    try:
        there = await asyncio.gather(*(_dial(p2p, address) for address in addresses))
        peers = dict.fromkeys(peer_in(address) for address, is_there in zip(addresses, there, strict=True) if is_there)
        return await kits_of(p2p, list(peers), Kit.own(card), card.name)
    finally:
        await p2p.shutdown()


async def _dial(p2p: P2P, address: str) -> bool:
    """Return whether the peer of an address is there."""
    where, _, peer = address.rpartition("/p2p/")
    try:
        async with asyncio.timeout(ANSWER_S):
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])
        return True
    except _FAILURES as error:
        logger.info("no peer at %s could be asked for its kit: %s", address, in_one_line(error))
        return False


async def kits_of(p2p: P2P, peers: Sequence[str], own: Kit, run: str) -> list[Kit | None]:
    """Return the kit of each of these peers, the first MAX_ASKED; None for one that does not tell it."""

    async def kit_of(peer: str) -> Kit | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                request = ExpertRequest(metadata=own.as_told(run))
                answer = await Kits.get_stub(p2p, PeerID.from_base58(peer)).rpc_kit(request)
            return Kit.told(answer.metadata, run)
        except _FAILURES as error:
            logger.info("%s does not tell its kit: %s", peer, in_one_line(error))
            return None

    return await asyncio.gather(*map(kit_of, peers[:MAX_ASKED]))
