"""A bootstrap peer's part in a run: it answers newcomers, and tells its organiser who is there."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.greeter import greet
from dalle_lib.swarm.peer.metrics import LOOK_S, MetricsBoard
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.status import MAX_SHOWN, PeerStatus, SwarmStatus, median_epoch

logger = logging.getLogger(__name__)

UsersOf = Callable[[Sequence[PeerStatus]], dict[str, str]]
"""Tells the user of each peer that is a member's, by its id."""
STATUS_EVERY_S, ADDRESSES_EVERY_S = 5.0, 60.0


def help_others(
    dht: hivemind.DHT,
    board: MetricsBoard,
    card: RunCard,
    folder: Path,
    events: EventLog,
    stop: threading.Event,
    users_of: UsersOf | None = None,
) -> None:
    """Answer newcomers until `stop` is set, and tell meanwhile what this peer sees of the swarm and where it is.

    `users_of` looks up whose peers are there, for those who want to know; of others nothing is told then.
    """
    reporters = [
        threading.Thread(target=_report, args=(dht, board, card, folder, stop, users_of), daemon=True),
        threading.Thread(target=_tell_addresses, args=(dht, events, stop), daemon=True),
    ]
    for reporter in reporters:
        reporter.start()
    try:
        greet(dht, stop)
    finally:
        stop.set()
        for reporter in reporters:
            reporter.join(LOOK_S)


def addresses_of(dht: hivemind.DHT) -> list[str]:
    """Return where others can reach this peer now, as far as it knows. Raises TimeoutError for a table that hangs."""
    found = dht.run_coroutine(partial(_visible, latest=True), return_future=True).result(LOOK_S)
    return [str(address) for address in found]


async def _visible(_dht: hivemind.DHT, node: DHTNode, latest: bool) -> list[Multiaddr]:
    return await node.get_visible_maddrs(latest=latest)


def _tell_addresses(dht: hivemind.DHT, events: EventLog, stop: threading.Event) -> None:
    """Tell where this peer listens whenever that has changed, as after a router has got another address."""
    told: set[str] = set()  # the first look finds what was told when this peer connected
    while not stop.is_set():
        try:
            now = addresses_of(dht)
            if told and now and set(now) != told:
                events.write("connected", addresses=now)
            told = set(now) or told
        except (OSError, P2PDaemonError, TimeoutError):
            logger.exception("this look at where this peer listens failed")
        stop.wait(ADDRESSES_EVERY_S)


def shown(found: list[PeerStatus], before: frozenset[str], most: int = MAX_SHOWN) -> list[PeerStatus]:
    """Return at most so many of the peers, in their order: first those that were shown before, by their ids.

    So a flood of invented peers drives nobody out who was there.
    """
    kept = {peer.peer_id for peer in sorted(found, key=lambda peer: peer.peer_id not in before)[:most]}
    return [peer for peer in found if peer.peer_id in kept]


def _report(
    dht: hivemind.DHT,
    board: MetricsBoard,
    card: RunCard,
    folder: Path,
    stop: threading.Event,
    users_of: UsersOf | None,
) -> None:
    """Write the swarm's status every few seconds. Its epoch is what the median user's trainers say of themselves."""
    epoch, total_epochs = 0, card.optimizer.total_epochs
    before: frozenset[str] = frozenset()
    while not stop.wait(STATUS_EVERY_S):
        try:
            found, said_complete = board.look(dht, total_epochs)
            users = users_of(found) if users_of else {}
            peers = shown([peer for peer in found if peer.peer_id in users] if users_of else found, before)
            before = frozenset(peer.peer_id for peer in peers)
            if peers:
                epoch = median_epoch(peers, users, total_epochs)
            elif said_complete:
                epoch = total_epochs
            SwarmStatus(
                time=time.time(),
                epoch=epoch,
                total_epochs=total_epochs,
                samples_in_epoch=None,
                target_batch_size=card.averaging.target_batch_size,
                peers=peers,
                not_shown=len(found) - len(peers),
                said_complete=said_complete,
                users={peer.peer_id: users[peer.peer_id] for peer in peers if peer.peer_id in users},
            ).write(folder)
        except Exception:  # a full disk, a hash table that hangs, whatever it is: the next look may succeed
            logger.exception("this look at the swarm failed")
