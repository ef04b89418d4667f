"""A bootstrap peer's part in a run: it answers newcomers, and tells its organiser who is there."""

import logging
import statistics
import threading
import time
from pathlib import Path

import hivemind

from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.greeter import greet
from dalle_lib.swarm.peer.metrics import LOOK_S, MetricsBoard
from dalle_lib.swarm.process.status import SwarmStatus

logger = logging.getLogger(__name__)

STATUS_EVERY_S = 5.0


def help_others(dht: hivemind.DHT, board: MetricsBoard, card: RunCard, folder: Path, stop: threading.Event) -> None:
    """Answer newcomers until `stop` is set, and write meanwhile what this peer sees of the swarm."""
    reporter = threading.Thread(target=_report, args=(dht, board, card, folder, stop), daemon=True)
    reporter.start()
    try:
        greet(dht, stop)
    finally:
        stop.set()
        reporter.join(LOOK_S)


def _report(dht: hivemind.DHT, board: MetricsBoard, card: RunCard, folder: Path, stop: threading.Event) -> None:
    """Write the swarm's status every few seconds. Its epoch is the median of what the trainers say of themselves."""
    epoch, total_epochs = 0, card.optimizer.total_epochs
    while not stop.wait(STATUS_EVERY_S):
        try:
            peers, said_complete = board.look(dht, total_epochs)
            if peers:
                epoch = min(total_epochs, statistics.median_low(peer.epoch for peer in peers))
            elif said_complete:
                epoch = total_epochs
            SwarmStatus(
                time=time.time(),
                epoch=epoch,
                total_epochs=total_epochs,
                samples_in_epoch=None,
                target_batch_size=card.averaging.target_batch_size,
                peers=peers,
                said_complete=said_complete,
            ).write(folder)
        except (OSError, TimeoutError):  # a full disk, or a hash table that hangs: the next look may succeed
            logger.exception("this look at the swarm failed")
