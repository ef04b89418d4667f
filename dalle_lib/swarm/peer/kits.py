"""Which kit a peer has, as it tells whoever asks for its run by name: so peers that can never meet know of each other.

Peers look each other up under their card's fingerprint, so those of another protocol, or with another card, find none
of the others, and would train on apart in silence. What a peer answers here depends on the run's name alone. Only the
run's first peers, and peers met before, are asked, each of itself, over connections that prove their ids: what anybody
else says keeps nobody out, and nothing is stored.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, P2PContext, P2PHandlerError, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from hivemind.utils.multiaddr import Multiaddr
from packaging.version import Version

from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.swarm.process.addresses import peer_in
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.version import __version__

logger = logging.getLogger(__name__)

MAX_BYTES = 1000
"""Of what a peer tells of its kit; a longer message is refused unread."""
MAX_VERSION = 32
"""Letters of a version."""
MAX_PROTOCOL = 10**6
MAX_ASKED = 8
"""Peers that are asked, in the order of their addresses."""
ANSWER_S = 10.0
"""Seconds in which a peer must answer; one that does not is not counted."""
ASK_EVERY_S = 600.0
"""Seconds between two questions to a first peer: it may have another kit when it comes back."""
MAX_TOLD = 3
"""Other kits of whoever has asked that are told in an event, over all the time that a peer runs: strangers invent them.
What first peers answer is told besides."""
_FINGERPRINT = re.compile("[0-9a-f]{16}")
_FAILURES = (P2PHandlerError, P2PDaemonError, OSError, EOFError, ValueError, TimeoutError)
"""What questions end with: no answer, none that can be read, or a p2pd that does not do what it is asked."""


@dataclass(frozen=True)
class Kit:
    """What decides whether two peers of a run's name can meet, and what to install where they cannot."""

    fingerprint: str
    """That of the peer's card."""
    protocol: int
    kit: str
    """The version of this package."""

    @classmethod
    def own(cls, card: RunCard) -> "Kit":
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
            told = "lists within lists"
        match told:
            case {"run": name, "fingerprint": str() as fingerprint, "protocol": int() as protocol, "kit": str() as kit}:
                if name != run:
                    raise ValueError(f"expected a kit for this run, but it is for {name!r:.80}")
                is_small = 0 <= protocol <= MAX_PROTOCOL and type(protocol) is int and len(kit) <= MAX_VERSION
                if is_small and kit.isascii() and _FINGERPRINT.fullmatch(fingerprint):
                    return cls(fingerprint, protocol, str(Version(kit)))
        raise ValueError(f"expected a kit, but got {told!r:.80}")

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
        """Return a line for a peer that takes part with this kit, of one that asks for the same run with another."""
        if other.protocol == self.protocol:
            return "a peer takes part in a run of the same name with another card: the two never meet"
        older = "it" if other.protocol < self.protocol else "this one"
        return f"a peer takes part with dalle-lib {other}, this one has {self}: they never meet, so update {older}"

    def __str__(self) -> str:
        return f"{self.kit} (protocol {self.protocol})"


class Kits(ServicerBase):
    """Answers whoever asks for this peer's run by its name, and tells the volunteer of other kits, each once."""

    def __init__(self, run: str, own: Kit, events: EventLog) -> None:
        self._run, self._own, self._events = run, own, events
        self._known = {own.fingerprint}
        self._asked = 0

    async def rpc_kit(self, request: ExpertRequest, context: P2PContext) -> ExpertResponse:
        """Answer with this peer's kit. Raises ValueError for no kit of the same run, which hivemind tells the caller."""
        other = Kit.told(request.metadata, self._run)
        if other.fingerprint not in self._known and self._asked < MAX_TOLD:
            self._asked += 1
            self._tell(other)
        return ExpertResponse(metadata=self._own.as_told(self._run))

    async def ask(self, p2p: P2P, first_peers: Sequence[str]) -> None:
        """Ask those of the first peers, by their ids, that are connected."""
        connected = {str(peer.peer_id) for peer in await p2p.list_peers()}
        for other in await _kits_of(p2p, [peer for peer in first_peers if peer in connected], self._own, self._run):
            if other is not None and other.fingerprint not in self._known:
                self._tell(other)

    def _tell(self, other: Kit) -> None:
        self._known.add(other.fingerprint)
        try:
            self._events.write("problem", peer="", problem=self._own.apart_from(other))
        except OSError as error:  # a full disk
            logger.warning("not told: %s (%s)", self._own.apart_from(other), in_one_line(error))


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

    Those of versions before do not. A p2pd with an id of its own is started to ask them, and ended: no swarm is joined.
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
        return await _kits_of(p2p, list(peers), Kit.own(card), card.name)
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


async def _kits_of(p2p: P2P, peers: Sequence[str], own: Kit, run: str) -> list[Kit | None]:
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
