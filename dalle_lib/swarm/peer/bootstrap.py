"""A bootstrap peer's part in a run: it answers newcomers, and tells its organiser who is there."""

import logging
import threading
import time
from functools import partial
from pathlib import Path

import hivemind
from hivemind.dht.node import DHTNode
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.greeter import greet
from dalle_lib.swarm.peer.looks import Looks, TokensOf
from dalle_lib.swarm.peer.metrics import LOOK_S, MetricsBoard
from dalle_lib.swarm.process.events import EventLog

logger = logging.getLogger(__name__)

STATUS_EVERY_S, ADDRESSES_EVERY_S = 5.0, 60.0


def help_others(
    dht: hivemind.DHT,
    board: MetricsBoard,
    card: RunCard,
    folder: Path,
    events: EventLog,
    stop: threading.Event,
    tokens_of: TokensOf | None = None,
    keeps_signed: bool = False,
) -> None:
    """Answer newcomers until `stop` is set, and tell meanwhile what this peer sees of the swarm and where it is.

    `tokens_of` looks up whose peers are there, for those who want to know; of others nothing is told then. With
    `keeps_signed` it also keeps what the peers have signed of that (`SignedLook`).
    """
    told = dht, board, card, folder, stop, tokens_of, keeps_signed
    reporters = [
        threading.Thread(target=_report, args=told, daemon=True),
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


def _report(
    dht: hivemind.DHT,
    board: MetricsBoard,
    card: RunCard,
    folder: Path,
    stop: threading.Event,
    tokens_of: TokensOf | None,
    keeps_signed: bool = False,
) -> None:
    """Write the swarm's status every few seconds, and with `keeps_signed` what was signed of it before."""
    looks = Looks(board, card, tokens_of)
    while not stop.wait(STATUS_EVERY_S):
        try:
            records = board.signed(dht)
            status = looks.status(records, time.time())
            if keeps_signed:
                looks.signed(records, status).write(folder)
            status.write(folder)
        except Exception:  # a full disk, a hash table that hangs, whatever it is: the next look may succeed
            logger.exception("this look at the swarm failed")
