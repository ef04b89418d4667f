"""A peer's way into the run's hash table: through first peers that answer, and later through those that come back."""

import asyncio
import logging
from collections.abc import Sequence

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.averaging.progress import call_again
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.process.addresses import CONNECT_S, peer_in, those_that_answer
from dalle_lib.swarm.process.join import CannotJoin
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)

FIRST_PEERS_EVERY_S = 60.0
"""Seconds between two looks for first peers: one that comes back has forgotten everybody."""
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
) -> hivemind.DHT:
    """Return this peer's part of the hash table, connected to the first peers that answer; to nobody if none does.

    It goes on looking for all of them. Raises NobodyAnswers if no first peer lets this one in, and CannotJoin if they
    refuse this peer or p2pd does not start.
    """
    dht = hivemind.DHT(
        start=False,
        # p2pd tries one after another, and its start waits for that: one silent first peer can take all the time.
        initial_peers=list(answering),
        host_maddrs=[f"/ip4/{settings.host}/tcp/{settings.port}"],
        client_mode=settings.client_mode,
        record_validators=validators,
        identity_path=membership.identity_file,
        authorizer=membership.authorizer,
        startup_timeout=CONNECT_S,
    )
    try:
        start(dht, first_peers)
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


def start(dht: hivemind.DHT, first_peers: Sequence[str]) -> None:
    """Start the hash table's process, which looks for these first peers now and then for as long as it runs.

    A first peer that was away has forgotten everybody, and p2pd forgets where one was that it never reached. Two swarms
    that began apart, because their first peers did not answer, become one so.
    """
    # The process inherits them. A card may name more than fit into a message to it, in which hivemind 1.1.12 loses its
    # way beyond 16 KiB.
    dht.first_peers = tuple(first_peers)
    dht.run_in_background()
    dht.initial_peers = list(first_peers)  # those that the progress tracker of a peer without others pings
    if first_peers:
        dht.run_coroutine(_look_again, return_future=True)


async def _look_again(dht: hivemind.DHT, node: DHTNode) -> None:
    node.looks_for_first_peers = asyncio.current_task()  # asyncio holds tasks weakly, and hivemind holds none
    while node.is_alive:
        await asyncio.sleep(FIRST_PEERS_EVERY_S)
        try:
            connected = {str(peer.peer_id) for peer in await node.p2p.list_peers()}
            missing = [address for address in dht.first_peers if peer_in(address) not in connected]
            # Where nobody answers, p2pd comes to dial every five minutes only: it is asked where somebody does.
            answering, _ = await asyncio.to_thread(those_that_answer, missing)
        except FAILURES as error:
            logger.info("could not look for first peers, and will again: %s", in_one_line(error))
        else:
            await asyncio.gather(*(_dial(node, address) for address in answering))
            met = connected.intersection(map(peer_in, dht.first_peers)).union(map(peer_in, answering))
            await call_again(dht, node, [PeerID.from_base58(peer) for peer in met])


async def _dial(node: DHTNode, address: str) -> None:
    """Connect to the peer at an address, or log why that fails."""
    where, _, peer = address.rpartition("/p2p/")
    try:
        async with asyncio.timeout(CONNECT_S):
            await node.p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])
    except FAILURES as error:
        logger.info("no first peer at %s: %s", address, in_one_line(error))
