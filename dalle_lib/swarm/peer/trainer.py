"""The trainer: computes gradients, shares them, and tells what it does."""

import math
import os
import threading
import time
from pathlib import Path

import hivemind
import torch

from dalle_lib.machine import require_room_in_cache, working_gpus
from dalle_lib.run import RunCard, batches_of, initial_model
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer, LeftOut
from dalle_lib.swarm.peer.build import build_optimizer
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import MetricsBoard, PeerMetrics
from dalle_lib.swarm.peer.snapshot import restore_snapshot, take_snapshot
from dalle_lib.swarm.peer.state import load_state, save_state
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus

SNAPSHOT_EVERY = 10
"""Epochs between the copies in memory that a peer goes back to when its parameters are no longer finite."""
STATUS_EVERY_S = 3.0
PUBLISH_EVERY_S = 60.0
"""Between putting this peer's token into the hash table anew, and looking at the clock."""
COMPUTE_NICENESS = 10


class Trainer:
    """One peer's part in a run, from joining to leaving."""

    def __init__(self, card: RunCard, settings: PeerSettings, folder: Path, events: EventLog) -> None:
        self.card, self.settings, self.folder, self.events = card, settings, folder, events
        found = working_gpus() if settings.device == "auto" else []
        self.device = torch.device(settings.device if settings.device != "auto" else next(iter(found), "cpu"))
        self.idle_gpus = found[1:]
        require_room_in_cache(f"run {card.name!r}", card.downloads)
        self.model = initial_model(card).to(self.device)
        self.samples = self.samples_at_epoch_start = 0
        self.losses: list[float] = []
        self.last_loss: float | None = None
        self.epoch_started = time.monotonic()

    def join(self, dht: hivemind.DHT, board: MetricsBoard, membership: Membership) -> None:
        """Connect to the run's peers and take over their state, or go on from this folder's own."""
        self.dht, self.board, self.membership = dht, board, membership
        self.optimizer: CollaborativeOptimizer = build_optimizer(
            self.card, self.model, dht, membership.trust(dht), membership.identity.private_key
        )
        if (saved := load_state(self.folder, self.card)) is not None:
            restore_snapshot(self.optimizer, saved)
        if self.optimizer.tracker.global_epoch > self.optimizer.local_epoch:
            self.optimizer.load_state_from_peers()
        self.epoch = self.optimizer.local_epoch
        self.snapshot = take_snapshot(self.optimizer)
        self.events.write(
            "joined",
            epoch=self.epoch,
            peer_id=str(dht.peer_id),
            name=self.settings.name,
            device=str(self.device),
            idle_gpus=self.idle_gpus,
        )

    def run(self, stop: threading.Event) -> None:
        """Train until `stop`, the end of the run, or the peer's own time limit."""
        # Linux gives the priority to this thread alone: answering other peers goes before computing.
        os.nice(COMPUTE_NICENESS)
        limit_s = math.inf if self.settings.max_minutes is None else 60 * self.settings.max_minutes
        deadline = time.monotonic() + limit_s
        self.reporter = threading.Thread(target=self._report_status, args=(stop,), daemon=True)
        self.reporter.start()
        for batch in batches_of(self.card, self.settings.batch_size, self.settings.data_seed):
            if stop.is_set() or time.monotonic() > deadline or self.epoch >= self.card.optimizer.total_epochs:
                return
            started = time.monotonic()
            self.step(batch)
            stop.wait((time.monotonic() - started) * (1 / self.settings.duty - 1))

    def step(self, batch: Batch) -> None:
        """Compute the gradient of one batch and hand it to the swarm; one that is not finite is left out."""
        text, codes, shown = (t.to(self.device) for t in (batch.text, batch.codes, batch.input_codes))
        loss = self.model(text, codes, shown).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not (loss.isfinite() and norm.isfinite()):
            self.events.write("skipped", loss=str(float(loss)), grad_norm=str(float(norm)))
            self.optimizer.zero_grad(set_to_none=False)
            self._roll_back_if_broken()
            return
        self.samples += len(batch)
        self.losses.append(float(loss))
        self.optimizer.step(batch_size=len(batch))
        self.optimizer.zero_grad(set_to_none=False)
        self._tell_rounds()
        if self.optimizer.local_epoch != self.epoch:
            self._end_epoch()
        if self.epoch >= self.snapshot.epoch + SNAPSHOT_EVERY and not self.optimizer.is_updating:
            self.snapshot = take_snapshot(self.optimizer)

    def leave(self) -> None:
        """Save, say goodbye, and disconnect."""
        self.reporter.join()
        self._write_status()
        self._post(is_leaving=True)
        save_state(self.folder, self.card, self.model, self.optimizer)
        self._tell_rounds()
        self.optimizer.shutdown()
        self.events.write("left", epoch=self.optimizer.local_epoch, samples=self.samples)

    def _end_epoch(self) -> None:
        seconds = time.monotonic() - self.epoch_started
        samples = self.samples - self.samples_at_epoch_start
        self.last_loss = sum(self.losses) / len(self.losses)
        self.epoch = self.optimizer.local_epoch
        self.events.write(
            "epoch",
            epoch=self.epoch,
            loss=self.last_loss,
            samples=samples,
            seconds=seconds,
            peers=self.optimizer.tracker.global_progress.num_peers,
            lr=self.optimizer.learning_rate,
        )
        self.losses, self.samples_at_epoch_start, self.epoch_started = [], self.samples, time.monotonic()
        self._post()
        self._roll_back_if_broken()

    def _roll_back_if_broken(self) -> None:
        if torch.nn.utils.get_total_norm(self.model.parameters()).isfinite():
            return
        restore_snapshot(self.optimizer, self.snapshot)
        self.epoch = self.optimizer.local_epoch
        self.events.write("rolled_back", epoch=self.epoch, error="parameters were no longer finite")

    def _tell_rounds(self) -> None:
        while not self.optimizer.rounds.empty():
            match self.optimizer.rounds.get():
                case LeftOut(epoch=epoch, samples=samples, reason=reason):
                    self.events.write("left_out", epoch=epoch, samples=samples, reason=reason)
                case done:
                    self.events.write("averaged", **vars(done), peers=len(done.shares), shares=done.shares)
        for peer, problem in self.optimizer.problems():
            self.events.write("problem", peer=peer, problem=problem)

    def _post(self, is_leaving: bool = False) -> None:
        metrics = PeerMetrics(
            peer_id=str(self.dht.peer_id),
            name=self.settings.name,
            epoch=self.epoch,
            samples=self.samples,
            samples_per_s=float(self.optimizer.tracker.performance_ema.samples_per_second),
            loss=self.last_loss,
            is_leaving=is_leaving,
        )
        self.board.post(self.dht, metrics)

    def _report_status(self, stop: threading.Event) -> None:
        """Write what this peer sees of the swarm every few seconds, until it leaves."""
        published = time.monotonic()
        while not stop.wait(STATUS_EVERY_S):
            self._write_status()
            if time.monotonic() - published > PUBLISH_EVERY_S:
                published = time.monotonic()
                self.membership.publish(self.dht)
                if (problem := self.membership.clock_problem(self.dht)) is not None:
                    self.events.write("problem", peer=str(self.dht.peer_id), problem=problem)

    def _write_status(self) -> None:
        progress = self.optimizer.tracker.global_progress
        SwarmStatus(
            time=time.time(),
            epoch=max(progress.epoch, self.epoch),
            total_epochs=self.card.optimizer.total_epochs,
            samples_in_epoch=progress.samples_accumulated,
            target_batch_size=self.card.averaging.target_batch_size,
            peers=[
                PeerStatus(
                    peer_id=peer.peer_id,
                    name=peer.name,
                    epoch=peer.epoch,
                    samples=peer.samples,
                    samples_per_s=peer.samples_per_s,
                    loss=peer.loss,
                )
                for peer in self.board.read(self.dht)
            ],
        ).write(self.folder)
