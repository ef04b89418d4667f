"""Whether peers have trained on the rows that they name: some batches are recomputed with a checkpoint's model."""

import logging
import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.machine import few_threads
from dalle_lib.model import DALLE
from dalle_lib.monitor.checkpoints import found_in
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.evaluating import CLOSE_S, EXAMINE_S, LOOK_S, give_way
from dalle_lib.monitor.losses import distances, note_recomputed
from dalle_lib.run import RunCard, batches_of
from dalle_lib.swarm.process.evidence import BatchLoss
from dalle_lib.swarm.process.folder import MODEL
from dalle_lib.swarm.process.settings import seed_of
from dalle_lib.swarm.process.status import SwarmStatus

logger = logging.getLogger(__name__)

RECOMPUTED, SUSPECTS = 5, 1
"""Batches that are recomputed with each checkpoint, and those of them that are of peers with one that did not fit, if
there are such; the others are drawn by lot."""
MAX_ROWS = 64
"""Rows of the largest batch that is recomputed: a processor takes too long for more."""
LATE = 2
"""Epochs between the run's and that of a batch when it is told: later than that nobody tells it."""
HELD = 100
"""Epochs of which batches are remembered until there is a checkpoint."""


@dataclass(frozen=True)
class Told:
    """A batch that a peer has told, with the seed of its order."""

    batch: BatchLoss
    seed: int


class Recomputer:
    """Computes the loss of batches again, from a thread of its own until `close`. What peers told is in memory alone.

    Only batches of the order that a peer's id decides are taken: else one could repeat what another has told.
    """

    def __init__(self, card: RunCard, place: Path, database: Path) -> None:
        """`place` is the folder of the monitor's peer. Raises ValueError if the run's data are not beside its card,
        or if its peers make steps of their own, whose loss no checkpoint shows."""
        if card.data.train.startswith("hf://"):
            raise ValueError(f"the training data of {card.name} are not beside its card.")
        if card.averaging.strategy != "gradients":
            raise ValueError(f"the peers of {card.name} make steps of their own between averages.")
        self.card, self._place, self._database = card, place, database
        self._told: dict[int, dict[str, Told]] = {}
        self._done = -1
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the batch in hand, or without it where that takes longer than CLOSE_S."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def note(self, status: SwarmStatus, shown: SwarmStatus) -> None:
        """Remember what peers tell. `shown` has the same peers by the ids that the data base knows."""
        with self._lock:
            for peer, known in zip(status.peers, shown.peers, strict=True):
                batch = BatchLoss.read(peer.trained)
                if batch is not None and 0 < batch.rows <= MAX_ROWS and abs(batch.epoch - status.epoch) <= LATE:
                    self._told.setdefault(batch.epoch, {})[known.peer_id] = Told(batch, seed_of(peer.peer_id))
            for epoch in [epoch for epoch in self._told if epoch < status.epoch - HELD]:
                del self._told[epoch]

    def forget(self) -> None:
        """Forget what peers told: they are of a part of the run that does not go on, or tell the same epochs anew."""
        with self._lock:
            self._told, self._done = {}, -1

    def _run(self) -> None:
        give_way()
        with closing(MonitorDatabase(self._database)) as database:
            while not self._stop.wait(LOOK_S):
                try:
                    self.look(database)
                except Exception:  # whatever it is, the next checkpoint's are recomputed
                    logger.exception("no batch was recomputed")

    def look(self, database: MonitorDatabase) -> None:
        """Recompute some batches of the epoch of a new checkpoint, once peers are beyond it and have told theirs."""
        folders = found_in(self._place)
        with self._lock:
            latest = max(self._told, default=-1)
            epoch = max((each for each in folders if self._done < each < latest and each in self._told), default=None)
            if epoch is None:
                return
            told_of, self._done = dict(self._told[epoch]), epoch
        deadline = time.monotonic() + EXAMINE_S
        model = load_model(folders[epoch] / MODEL, self.card.model)
        suspects = {peer for peer, told in distances(database).items() if any(each.is_far for each in told)}
        by_lot = sorted(random.sample(sorted(told_of), len(told_of)), key=lambda peer: peer not in suspects)
        again = by_lot[:SUSPECTS]  # one that did not fit once may have done so by chance
        for peer in again + random.sample(by_lot[SUSPECTS:], min(RECOMPUTED - SUSPECTS, len(by_lot[SUSPECTS:]))):
            if self._stop.is_set() or time.monotonic() > deadline:
                return
            told = told_of[peer]
            note_recomputed(database, epoch, peer, told.batch.loss, loss_of(self.card, model, told))


@torch.inference_mode()
def loss_of(card: RunCard, model: DALLE, told: Told) -> float:
    """Return the loss of a model on a batch, as a peer computes it."""
    with closing(batches_of(card, told.batch.rows, told.seed)) as batches, few_threads(model):
        batches.load_state_dict(batches.state_dict() | {"position": told.batch.start})
        batch = next(batches)
        return float(model(batch.text, batch.codes, batch.input_codes).loss)
