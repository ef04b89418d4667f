"""Connections that are dead because this machine has changed its network: a laptop that was carried elsewhere.

libp2p notices that a connection is dead when the other end answers nothing for some 40 seconds. Here it is given up as
soon as this machine no longer has the address that it comes from.
"""

import logging

import psutil
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo

logger = logging.getLogger(__name__)

Place = tuple[str, int]
"""An address of another machine, and a port."""


class Moves:
    """Looks again and again whether this machine has lost an address."""

    def __init__(self) -> None:
        self._seen = _own_addresses()

    async def leave_dead_connections(self, p2p: P2P) -> bool:
        """Disconnect the peers to which a connection comes from a lost address; return whether there was any."""
        if not (dead := self.dead_connections(p2p._child.pid)):
            return False
        peers = [peer for peer in await p2p.list_peers() if dead.intersection(_places(peer))]
        logger.info("this machine has changed its network: %d connections are given up", len(peers))
        for peer in peers:
            await p2p._client.disconnect(peer.peer_id)
        return bool(peers)

    def dead_connections(self, process_id: int) -> set[Place]:
        """Return where those connections of a process lead that come from an address that this machine had before."""
        own = _own_addresses()
        self._seen, lost = self._seen | own, self._seen - own
        if not lost:
            return set()
        try:
            connections = psutil.Process(process_id).net_connections("tcp")
        except psutil.Error as error:  # it has ended, or this system does not show them: libp2p has to notice
            logger.debug("connections cannot be seen: %s", error)
            return set()
        return {(_plain(c.raddr.ip), c.raddr.port) for c in connections if c.raddr and _plain(c.laddr.ip) in lost}


def _own_addresses() -> set[str]:
    return {_plain(each.address) for found in psutil.net_if_addrs().values() for each in found}


def _plain(address: str) -> str:
    """Return an address without its network card, and one of IPv4 without the prefix that a socket of IPv6 shows."""
    return address.partition("%")[0].removeprefix("::ffff:")


def _places(peer: PeerInfo) -> set[Place]:
    parts = [str(address).split("/") for address in peer.addrs]
    return {(part[2], int(part[4])) for part in parts if len(part) > 4 and part[3] == "tcp"}
