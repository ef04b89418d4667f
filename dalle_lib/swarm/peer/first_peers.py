"""A peer's way into the run's hash table: through first peers that answer, and later through those that come back.

Whom it meets there, and where others can reach them, it remembers for its next start.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr
from torch import Tensor

from dalle_lib.one_line import in_one_line
from dalle_lib.run.kit import Kit
from dalle_lib.swarm import hash_table
from dalle_lib.swarm.averaging.letting_go import let_go
from dalle_lib.swarm.peer.greeter import Greeter
from dalle_lib.swarm.peer.kits import tell_kit
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.process.addresses import CONNECT_S, is_address, of_others, peer_in, those_that_answer
from dalle_lib.swarm.process.join import CannotJoin
from dalle_lib.swarm.process.met import MAX_MET, addresses_met, remember
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)

FIRST_PEERS_EVERY_S, FIRST_LOOK_S = 60.0, 5.0
"""Seconds between two looks for first peers, as one that comes back has forgotten everybody; and before the first
look, after which the time doubles."""
MET_EVERY_S = 600.0
"""Seconds for which a peer that answered at an address is not tried there again."""
FAILURES = (P2PDaemonError, OSError, EOFError, ValueError)
"""What calls of p2pd end with if it cannot do what it is asked, is about to end, or passes on a stranger's nonsense."""


class NobodyAnswers(Exception):
    """No first peer lets this one in, because none answers; the text says why."""


def enter(
    answering: Sequence[str],
    first_peers: Sequence[str],
    settings: PeerSettings,
    membership: Membership,
    validators: list,
    of_trainer: Iterable[Tensor] = (),
) -> hivemind.DHT:
    """Return this peer's part of the hash table, connected to the first peers that answer; to nobody if none does.

    It goes on looking for all of them, in a process that lets go of the tensors `of_trainer`. Raises NobodyAnswers if
    no first peer lets this one in, and CannotJoin if they refuse this peer or p2pd does not start.
    """
    dht = hivemind.DHT(
        start=False,
        # p2pd tries one after another, and its start waits for that: one silent first peer can take all the time.
        initial_peers=list(answering),
        host_maddrs=[f"/ip4/{settings.host}/tcp/{settings.port}"],
        announce_maddrs=settings.announce or None,  # None announces where p2pd listens
        client_mode=bool(settings.client_mode),
        record_validators=validators,
        identity_path=membership.identity_file,
        authorizer=membership.authorizer,
        startup_timeout=CONNECT_S,
    )
    try:
        start(dht, first_peers, membership.folder, of_trainer)
        card = membership.card
        told = partial(tell_kit, run=card.name, own=Kit.own(card), folder=membership.folder)
        dht.run_coroutine(told, return_future=True)
        if settings.role == "trainer" and not settings.client_mode:
            dht.run_coroutine(_dial_back, return_future=True)
    except ValidationError as error:
        raise CannotJoin(
            f"the run's first peers refuse this one: {error}. If this is about time, set this computer's clock; if it "
            "is about access, join with --client-mode. `dalle-lib doctor` tells more."
        ) from error
    except P2PDaemonError as error:
        why = in_one_line(error)
        if "bootstrap peers" in why:
            raise NobodyAnswers("nobody with the id in the address answers there") from error
        if "failed to start in" in why and answering:
            raise NobodyAnswers(f"{why}, while it waited for first peers") from error
        if "already taken" in why:
            raise CannotJoin(
                f"another peer takes part with the identity in {membership.identity_file}: has its folder been copied? "
                "Stop the other peer; or move this file away, and a new one is made."
            ) from error
        raise CannotJoin(f"p2pd, through which peers connect, does not start: {why}") from error
    except RuntimeError as error:
        if "bootstrap failed" not in str(error):
            raise
        raise NobodyAnswers(
            "there is a peer, but its hash table is silent: it hangs, or is of something else"
        ) from error
    return dht


def start(dht: hivemind.DHT, first_peers: Sequence[str], folder: Path, of_trainer: Iterable[Tensor] = ()) -> None:
    """Start the hash table's process, which looks for these first peers now and then for as long as it runs.

    It lets go of the tensors `of_trainer`, and remembers in `folder` where others answer. Where none of the first peers
    is there, it looks for those.

    A first peer that was away has forgotten everybody, and p2pd forgets where one was that it never reached. Two swarms
    that began apart, because their first peers did not answer, become one so.
    """
    # The process inherits them. A card may name more than fit into a message to it, in which hivemind 1.1.12 loses its
    # way beyond 16 KiB.
    dht.first_peers, dht.folder, dht.of_trainer = tuple(first_peers), folder, tuple(of_trainer)
    dht.run_in_background()
    dht.initial_peers = list(first_peers)  # those that the progress tracker of a peer without others pings
    dht.run_coroutine(_look_again, return_future=True)
    dht.run_coroutine(_end_with_p2pd, return_future=True)


async def _look_again(dht: hivemind.DHT, node: DHTNode) -> None:
    node.looks_for_first_peers = asyncio.current_task()  # asyncio holds tasks weakly, and hivemind holds none
    let_go(dht.of_trainer)
    wait_s, answered = FIRST_LOOK_S, {}
    while node.is_alive:
        await asyncio.sleep(min(wait_s, FIRST_PEERS_EVERY_S))
        wait_s *= 2
        try:
            peers = await node.p2p.list_peers()
            await _look_for_first_peers(dht, node, {str(peer.peer_id) for peer in peers})
            await _remember(node, peers, answered, dht.folder)
        except FAILURES as error:
            logger.info("could not look for first peers, and will again: %s", in_one_line(error))


async def _end_with_p2pd(_dht: hivemind.DHT, node: DHTNode) -> None:
    """End this process where p2pd ends: it reaches nobody any more, and the trainer sees that it has ended."""
    node.ends_with_p2pd = asyncio.current_task()
    code = await node.p2p._child.wait()
    if node.is_alive:
        logger.error("p2pd has ended with exit code %s", code)
        logging.shutdown()
        os._exit(1)


async def _dial_back(_dht: hivemind.DHT, node: DHTNode) -> None:
    """Try for newcomers whether others can reach them. A trainer measures no uploads, which would take its own line."""
    await Greeter(node.p2p).add_p2p_handlers(node.p2p)


async def _look_for_first_peers(dht: hivemind.DHT, node: DHTNode, connected: set[str]) -> None:
    """Connect to the first peers that are not connected, and call all; or, where none is there, peers met before."""
    missing = [address for address in dht.first_peers if peer_in(address) not in connected]
    # Where nobody answers, p2pd comes to dial every five minutes only: it is asked where somebody does.
    answering, _ = await asyncio.to_thread(those_that_answer, missing)
    there = connected.intersection(map(peer_in, dht.first_peers)).union(map(peer_in, answering))
    if not there:
        met = await asyncio.to_thread(addresses_met, dht.folder)
        missing = [address for address in of_others(met, str(node.peer_id)) if peer_in(address) not in connected]
        answering, _ = await asyncio.to_thread(those_that_answer, missing)
        there = connected.intersection(map(peer_in, met)).union(map(peer_in, answering))
    await asyncio.gather(*(_dial(node, address) for address in answering))
    await hash_table.call_again(dht, node, [PeerID.from_base58(peer) for peer in there])


async def _remember(node: DHTNode, peers: Sequence[PeerInfo], answered: dict[str, float], folder: Path) -> None:
    """Remember at which addresses those answer that this peer knows from the hash table, which lets members in alone.

    One that connected to this peer from behind a router, or in client mode, answers nobody.
    """
    known, now = node.protocol.routing_table.peer_id_to_uid, time.monotonic()
    found = {f"{where}/p2p/{peer.peer_id}" for peer in peers if peer.peer_id in known for where in peer.addrs}
    untried = {each for each in found if now - answered.get(each, -math.inf) > MET_EVERY_S}
    tried = [each for each in untried if is_address(each) and "/tcp/" in each and "/p2p-circuit" not in each]
    answering, _ = await asyncio.to_thread(those_that_answer, tried[:MAX_MET])
    if answering:
        answered.update(dict.fromkeys(answering, now))
        for old in [each for each, at in answered.items() if now - at > MET_EVERY_S]:
            del answered[old]
        await asyncio.to_thread(remember, folder, answering)


async def _dial(node: DHTNode, address: str) -> None:
    """Connect to the peer at an address, or log why that fails."""
    where, _, peer = address.rpartition("/p2p/")
    try:
        async with asyncio.timeout(CONNECT_S):
            await node.p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])
    except FAILURES as error:
        logger.info("no first peer at %s: %s", address, in_one_line(error))
