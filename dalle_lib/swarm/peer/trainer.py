"""The trainer: computes gradients, shares them, and tells what it does."""

import logging
import math
import os
import threading
import time
from dataclasses import asdict, dataclass

import hivemind
import torch

from dalle_lib.machine import check_gpu, name_of, require_room_in_cache, working_gpus
from dalle_lib.model import DALLE
from dalle_lib.model.inputs import check_inputs
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming.batches import Batch, TrainingBatches
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.rounds import LeftOut, ParameterRound
from dalle_lib.swarm.peer.beginning import take_up
from dalle_lib.swarm.peer.build import build_optimizer
from dalle_lib.swarm.peer.epoch import EpochSoFar
from dalle_lib.swarm.peer.last_state import give_last_state
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import COMPLETE_EXPIRES_S, EXPIRES_S, LOOK_S, MetricsBoard
from dalle_lib.swarm.peer.snapshot import restore_snapshot, take_snapshot
from dalle_lib.swarm.peer.state import save_state
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.evidence import witness
from dalle_lib.swarm.process.settings import ANONYMOUS, PeerSettings
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus
from dalle_lib.version import __version__

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY = 10
"""Epochs between the copies in memory that a peer goes back to when its parameters are no longer finite."""
STATUS_EVERY_S, POST_EVERY_S = 3.0, 20.0
"""Seconds between looks at the swarm, and between a peer's own records while an epoch lasts, which expire."""
PUBLISH_EVERY_S = 60.0
"""Seconds between republications of an access token that was not renewed, and between checks of the clock."""
COMPUTE_NICENESS = 10


@dataclass(frozen=True)
class Workplace:
    """What a trainer computes with, ready before it connects to others."""

    model: DALLE
    device: torch.device
    batches: TrainingBatches
    """What it trains on, of which the first can be read."""
    idle_gpus: list[str]
    """GPUs that work but are not used, because a peer computes on one."""

    @classmethod
    def prepare(cls, card: RunCard, settings: PeerSettings, peer_id: str) -> "Workplace":
        """Return the run's model on this peer's device, and its data in the order of the peer of this id.

        Raises NotEnoughRoom before anything is downloaded, and ValueError if the device does not compute, or if what
        the run's card names is not beside it, is another, or cannot be trained on.
        """
        found = working_gpus() if settings.device == "auto" else []
        device = torch.device(settings.device if settings.device != "auto" else next(iter(found), "cpu"))
        if device.type == "cuda" and not found and (problem := check_gpu(str(device)).problem):
            raise ValueError(
                f'{settings.device} does not compute here: {problem}. Choose another --device; "auto" takes a GPU that '
                "works, or else the processor."
            )
        card.require_beside()
        require_room_in_cache(f"run {card.name!r}", card.downloads)
        model, batches = initial_model(card), batches_of(card, settings.batch_size, settings.data_seed(peer_id))
        begin, first = batches.state_dict(), next(batches)
        check_inputs(card.model, first.text, first.codes)
        batches.load_state_dict(begin)
        return cls(model.to(device), device, batches, found[1:])


class Trainer:
    """One peer's part in a run. It takes part in rounds of averaging from when it is made until it leaves."""

    def __init__(
        self,
        settings: PeerSettings,
        workplace: Workplace,
        dht: hivemind.DHT,
        board: MetricsBoard,
        membership: Membership,
        events: EventLog,
    ) -> None:
        """Connect to the run's trainers, and take over their state or go on from that of this peer's folder.

        Raises BrokenFile if the state in the folder cannot be used.
        """
        self.settings, self.dht, self.board, self.membership, self.events = settings, dht, board, membership, events
        self.card, self.folder = membership.card, membership.folder
        self.model, self.device, self.batches = workplace.model, workplace.device, workplace.batches
        self.optimizer: CollaborativeOptimizer = build_optimizer(self.card, self.model, dht, membership.trust(dht))
        take_up(self.folder, self.optimizer, self.batches, events)
        self.epoch = self.optimizer.local_epoch
        self.snapshot = take_snapshot(self.optimizer.state_averager)
        self.samples = 0
        self.joined_at, self.compute_s, self.counted = time.time(), 0.0, 0.0
        self.sent_bytes, self.received_bytes = 0, 0
        self.last_loss: float | None = None
        self.witnessed, self.trained, self._posted = "", "", time.monotonic()
        self.so_far = EpochSoFar()
        self._is_of_epoch = False
        """Whether the model has the parameters of this epoch, and no update of it is still to be taken over."""
        self.told_left_out = ""
        peers, total = self.optimizer.tracker.global_progress.num_peers, self.card.optimizer.total_epochs
        self.events.write(
            "joined",
            epoch=self.epoch,
            peer_id=str(dht.peer_id),
            name=settings.name,
            device=str(self.device),
            idle_gpus=workplace.idle_gpus,
            peers=peers,
            said_complete=peers <= 1 and self.epoch < total and board.said_complete(dht, total),
        )

    def run(self, stop: threading.Event) -> None:
        """Train until `stop` is set, the run is complete or the peer's own time limit is over; then set `stop`."""
        # Linux gives this priority to the calling thread alone: answering other peers goes before computing.
        os.nice(COMPUTE_NICENESS)
        limit_s = math.inf if self.settings.max_minutes is None else 60 * self.settings.max_minutes
        deadline = time.monotonic() + limit_s
        reporter = threading.Thread(target=self._report_status, args=(stop,), daemon=True)
        reporter.start()
        self.batches.prefetch()  # not before all processes of this peer are forked
        threading.Thread(target=self._end_data, args=(stop,), daemon=True).start()
        try:
            while not (stop.is_set() or time.monotonic() > deadline or self._is_complete):
                started = time.monotonic()
                if (batch := next(self.batches, None)) is None:
                    return
                self.step(batch)
                stop.wait((time.monotonic() - started) * (1 / self.settings.duty - 1))
            if self._is_complete:
                give_last_state(self.card, self.optimizer.state_averager.line, stop, deadline, self.events)
        finally:
            stop.set()
            reporter.join(LOOK_S)

    def step(self, batch: Batch) -> None:
        """Compute the gradient of one batch and hand it to the swarm; a gradient that is not finite is left out."""
        started = time.monotonic()
        loss = self._compute_gradient(batch)
        self.compute_s += time.monotonic() - started
        self.so_far.add(batch)
        if loss is None:
            self.optimizer.zero_grad(set_to_none=False)
            self._roll_back_if_broken()
            return
        self.samples += len(batch)
        self.so_far.count(batch, loss, self.epoch if self._is_of_epoch else None)
        was_updating = self.optimizer.is_updating
        self.optimizer.step(batch_size=len(batch))
        self._is_of_epoch = not (was_updating or self.optimizer.is_updating or self.optimizer.is_behind)
        self.optimizer.zero_grad(set_to_none=False)
        self._tell_rounds()
        if self.optimizer.local_epoch != self.epoch:
            self._end_epoch()
        if self.epoch >= self.snapshot.epoch + SNAPSHOT_EVERY and not self.optimizer.is_updating:
            self.snapshot = take_snapshot(self.optimizer.state_averager, self.snapshot)

    def leave(self) -> None:
        """Save this peer's progress, tell the others that it leaves, and disconnect from them."""
        self.events.write("leaving", epoch=self.epoch)
        snapshot = take_snapshot(self.optimizer.state_averager, self.snapshot)
        save_state(self.folder, self.card, self.model, snapshot, self.batches)  # before others can hold it up
        self._write_status()
        self._post(is_leaving=True)
        self._tell_rounds()
        self.optimizer.shutdown()
        self.events.write("left", epoch=self.optimizer.local_epoch, samples=self.samples, compute_s=self.compute_s)

    @property
    def _is_complete(self) -> bool:
        return self.epoch >= self.card.optimizer.total_epochs

    def _end_data(self, stop: threading.Event) -> None:
        """End the wait for data, which a slow network may make long, when this peer is to leave."""
        stop.wait()
        self.batches.close()

    def _compute_gradient(self, batch: Batch) -> float | None:
        """Return the loss of a batch, or None if the loss or its gradient is not finite."""
        text, codes, shown = (t.to(self.device) for t in (batch.text, batch.codes, batch.input_codes))
        loss = self.model(text, codes, shown).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if loss.isfinite() and norm.isfinite():
            return float(loss)
        self.events.write("skipped", loss=str(float(loss)), grad_norm=str(float(norm)))
        return None

    def _end_epoch(self) -> None:
        ended, self.so_far = self.so_far, EpochSoFar()
        self.last_loss = sum(ended.losses) / len(ended.losses)
        self.trained = ended.trained if self.settings.seed is None else ""  # others know the order by the peer's id
        self.epoch = self.optimizer.local_epoch
        self.events.write(
            "epoch",
            epoch=self.epoch,
            loss=self.last_loss,
            samples=ended.samples,
            compute_s=self.compute_s,
            seconds=self.so_far.started - ended.started,
            peers=self.optimizer.tracker.global_progress.num_peers,
            lr=self.optimizer.learning_rate,
            receipts=[asdict(receipt) for receipt in ended.receipts],
        )
        if (left_out := self.batches.left_out) != self.told_left_out:
            self.told_left_out = left_out
            self.events.write("data", left_out=left_out)
        self._post()
        self._roll_back_if_broken()

    def _roll_back_if_broken(self) -> None:
        """Go back to the last snapshot if a parameter is no longer finite."""
        if torch.nn.utils.get_total_norm(self.model.parameters()).isfinite():
            return
        restore_snapshot(self.optimizer, self.snapshot)
        self.epoch = self.optimizer.local_epoch
        self.events.write("rolled_back", epoch=self.epoch, error="parameters were no longer finite")

    def _tell_rounds(self) -> None:
        while not self.optimizer.rounds.empty():
            match self.optimizer.rounds.get():
                case LeftOut() as left_out:
                    self.events.write("left_out", **vars(left_out))
                case ParameterRound() as done:
                    self.events.write("parameters", **vars(done), shares=done.shares)
                case done:
                    self.sent_bytes += done.bytes_sent
                    self.received_bytes += done.bytes_received
                    if len(done.shares) > 1:
                        own = str(self.dht.peer_id)
                        self.counted += done.counted.get(own, 0.0)
                        self.witnessed = witness(done.epoch, done.counted, own)
                    self.events.write("averaged", **vars(done), peers=len(done.shares), shares=done.shares)
        for peer, problem in self.optimizer.problems():
            self.events.write("problem", peer=peer, problem=problem)

    def _post(self, is_leaving: bool = False) -> None:
        status = PeerStatus(
            peer_id=str(self.dht.peer_id),
            name=ANONYMOUS if self.settings.anonymous else self.settings.name,
            epoch=self.epoch,
            samples=self.samples,
            samples_per_s=float(self.optimizer.tracker.performance_ema.samples_per_second),
            loss=self.last_loss,
            started_at=self.joined_at,
            compute_s=self.compute_s,
            counted=self.counted,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            hardware=name_of(self.device),
            kit=__version__,
            team=self.settings.team,
            anonymous=self.settings.anonymous,
            witnessed=self.witnessed,
            trained=self.trained,
        )
        self._posted, is_last = time.monotonic(), is_leaving and self._is_complete
        self.board.post(self.dht, status, is_leaving, COMPLETE_EXPIRES_S if is_last else EXPIRES_S)

    def _report_status(self, stop: threading.Event) -> None:
        """Write what this peer sees of the swarm every few seconds, until it leaves."""
        published, expires = time.monotonic(), self.membership.expires
        while not stop.wait(STATUS_EVERY_S):
            if time.monotonic() - self._posted > POST_EVERY_S:
                self._post()
            self._write_status()
            if time.monotonic() - published > PUBLISH_EVERY_S or self.membership.expires != expires:
                published, expires = time.monotonic(), self.membership.expires
                try:
                    self.membership.publish(self.dht)
                    if (problem := self.membership.clock_problem(self.dht)) is not None:
                        self.events.write("problem", peer=str(self.dht.peer_id), problem=problem)
                except Exception:  # whatever it is, the access token must be published again
                    logger.exception("the access token was not published")

    def _write_status(self) -> None:
        """Write what this peer sees of the swarm. A full disk, or a hash table that hangs, is logged."""
        progress = self.optimizer.tracker.global_progress
        try:
            SwarmStatus(
                time=time.time(),
                epoch=max(progress.epoch, self.epoch),
                total_epochs=self.card.optimizer.total_epochs,
                samples_in_epoch=progress.samples_accumulated,
                target_batch_size=self.card.averaging.target_batch_size,
                peers=self.board.read(self.dht),
            ).write(self.folder)
        except (OSError, TimeoutError):
            logger.exception("this look at the swarm failed")
