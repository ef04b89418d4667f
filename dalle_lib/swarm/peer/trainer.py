"""The trainer: computes gradients, shares them, and tells what it does."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import hivemind
import torch

from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.averaging.letting_go import give_back
from dalle_lib.swarm.peer.beginning import take_up
from dalle_lib.swarm.peer.build import build_optimizer
from dalle_lib.swarm.peer.computing.room import is_out_of_memory
from dalle_lib.swarm.peer.computing.work import Work
from dalle_lib.swarm.peer.epoch import EpochSoFar
from dalle_lib.swarm.peer.holding import LOOK_EVERY_S, Holder
from dalle_lib.swarm.peer.last_state import await_last_update, give_last_state
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import LOOK_S, MetricsBoard
from dalle_lib.swarm.peer.parts import CONNECTS, Part
from dalle_lib.swarm.peer.sleeping import AwakeClock
from dalle_lib.swarm.peer.snapshot import restore_snapshot, take_snapshot
from dalle_lib.swarm.peer.spreading import Spreading
from dalle_lib.swarm.peer.state import save_state
from dalle_lib.swarm.peer.telling import Telling
from dalle_lib.swarm.peer.traffic import MonthlyTraffic
from dalle_lib.swarm.peer.workplace import Workplace, stand_back
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY = 10
"""Epochs between the copies that a peer goes back to: in memory when its parameters are no longer finite, and on disk
when it is started again after it was killed."""


class Trainer(Telling):
    """One peer's part in a run. It takes part in rounds of averaging from when it is made until it leaves."""

    def __init__(
        self,
        settings: PeerSettings,
        workplace: Workplace,
        dht: hivemind.DHT,
        board: MetricsBoard,
        membership: Membership,
        events: EventLog,
        traffic: MonthlyTraffic,
        stop: threading.Event,
    ) -> None:
        """Connect to the run's trainers, and take over their state or go on from that of this peer's folder.

        Once `stop` is set, it takes over no other state. Raises BrokenFile if that in the folder cannot be used.
        """
        self.settings, self.dht, self.board, self.membership, self.events = settings, dht, board, membership, events
        self.card, self.folder = membership.card, membership.folder
        self.model, self.batches = workplace.model, workplace.batches
        tell = partial(events.write, "computing")
        self.work = Work(self.model, workplace.device, workplace.pace, tell, workplace.further, settings.gpu_share)
        self.optimizer = build_optimizer(self.card, self.model, dht, membership.trust(dht), traffic.upload)
        traffic.begin()
        self.optimizer.state_averager.is_over = stop.is_set
        take_up(self.folder, self.optimizer, self.batches, events, self.card.fingerprint)
        self.epoch = self.optimizer.local_epoch
        self.spreading = Spreading(self.card, self.optimizer, str(dht.peer_id), events)
        self.snapshot = take_snapshot(self.optimizer.state_averager)
        self.samples, self.sent_bytes, self.received_bytes = 0, 0, 0
        self.joined_at, self.compute_s, self.counted = time.time(), 0.0, 0.0
        self.last_loss: float | None = None
        self.witnessed, self.trained, self.told_left_out, self._posted = "", "", "", time.monotonic()
        self.clock = AwakeClock()
        self.saved = threading.Event()
        """Set when this peer leaves and has saved its progress."""
        self.holder = Holder(settings, self.folder, events, is_month_used=lambda: traffic.is_used)
        self.so_far = EpochSoFar(self.clock.now())
        self._still_s, self._has_handed_in = 0.0, False
        """Whether this peer, which computes nothing now, has nothing left to be averaged."""
        self._is_of_epoch = False
        """Whether the model has the parameters of this epoch, and no update of it is still to be taken over."""
        peers, total = self.optimizer.tracker.global_progress.num_peers, self.card.optimizer.total_epochs
        self.events.write(
            "joined",
            epoch=self.epoch,
            peer_id=str(dht.peer_id),
            name=settings.name,
            device=workplace.told,
            peers=peers,
            said_complete=peers <= 1 and self.epoch < total and board.said_complete(dht, total),
        )

    def run(self, stop: threading.Event) -> None:
        """Train until `stop` is set, the run is complete or the peer's own time limit is over; then set `stop`."""
        ends_at = self.settings.ends_at(self.joined_at)
        self.clock = AwakeClock()  # nobody has looked at the one of before, while this peer joined
        reporter = threading.Thread(target=self._report_status, args=(stop,), daemon=True)
        reporter.start()
        threading.Thread(target=self._end_data, args=(stop,), daemon=True).start()
        threading.Thread(target=self.clock.watch, args=(stop,), daemon=True).start()
        stand_back(self.settings)
        try:
            while not (stop.is_set() or time.time() > ends_at or self._is_complete or self._is_finished):
                if self.holder.look(self.epoch) is not None:
                    self._stand_by(stop)
                    continue
                if self.work.is_new:  # what follows comes after all processes of this peer are forked
                    self.work.choose_way(self._peers, ends_at - time.time(), stop.is_set)
                    self.batches.prefetch(self.work.devices.sent)
                    self.optimizer.tracker.performance_ema.reset_timer()  # or the first batch would count as slow
                self._has_handed_in = False
                self.optimizer.come_back()
                self._note_rounds()
                if not (batches := self.work.next_batches(self.batches, self._peers)):
                    return
                computed_before_s = self.compute_s
                self.step(batches)
                rest_s = (self.compute_s - computed_before_s) * (1 / self.settings.duty - 1)
                self.holder.rest(min(rest_s, ends_at - time.time()), self.epoch, stop)
            while self._is_finished and self.optimizer.is_updating and not stop.is_set():
                self._stand_by(stop)
            if self._is_complete:
                await_last_update(self.optimizer, stop, ends_at)
                give_last_state(self.card, self.optimizer.state_averager.line, stop, ends_at, self.events)
        except Interrupted:
            logger.info("this peer leaves without what it was computing, or waiting for")
        finally:
            stop.set()
            reporter.join(LOOK_S)

    def step(self, batches: Sequence[Batch]) -> None:
        """Compute the gradient of some batches and hand it to the swarm; one that is not finite is left out."""
        started, samples = self.clock.now(), sum(map(len, batches))
        losses = self._compute_gradient(batches)
        computed = time.monotonic()
        computed_s = self.clock.now() - started
        self.compute_s += computed_s
        if (slept_s := self.clock.still_s - self._still_s) > 0:
            self._still_s += slept_s
            self.optimizer.tracker.leave_out(slept_s, computed_s)
        for batch in batches:
            self.so_far.add(batch)
        if losses is None:
            return
        if not self.samples:  # a volunteer waits for the first
            self.events.write("computed", samples=samples)
        self.samples += samples
        for batch, loss in zip(batches, losses, strict=True):
            self.so_far.count(batch, loss, self.epoch if self._is_of_epoch else None)
        was_updating = self.optimizer.is_updating
        with self.work.less_without_memory(batches, self.optimizer.drop_gradients):
            self.optimizer.step(batch_size=samples)
        self._is_of_epoch = not (was_updating or self.optimizer.is_updating or self.optimizer.is_behind)
        self.optimizer.zero_grad(set_to_none=False)
        self.work.pace.looked(computed)
        self._note_rounds()
        self.spreading.mend()
        is_due = not 0 <= self.epoch - self.snapshot.epoch < SNAPSHOT_EVERY  # also where it has left its part of a run
        if is_due and not self.optimizer.is_updating:
            try:
                self._save()
            except Exception as error:  # a full disk, or memory, may have room again until it leaves
                if not (isinstance(error, OSError) or is_out_of_memory(error)):
                    raise
                problem = f"this peer's progress was not saved: {in_one_line(error)}"
                self.events.write("problem", peer="", problem=problem)

    def _save(self, patience_s: float | None = None) -> None:
        """Copy parameters and statistics in memory and to disk, from where a peer goes on that was killed.

        Where they are not finite, this peer goes back to the last copy that is.
        """
        averager = self.optimizer.state_averager
        taken = take_snapshot(averager, self.snapshot, patience_s)
        if taken is self.snapshot:
            left_s = None if patience_s is None else averager.left_s
            self._roll_back("statistics or parameters were no longer finite", left_s)
        self.snapshot = taken
        save_state(self.folder, self.card, self.model, self.snapshot, self.batches)

    def _stand_by(self, stop: threading.Event) -> None:
        """Compute nothing for a moment, but take part in the round that this peer's gradients are for."""
        started, so_far = self.clock.now(), self.so_far
        self._has_handed_in, self._is_of_epoch = self.optimizer.stand_by(), False
        self._note_rounds()
        stop.wait(LOOK_EVERY_S)
        if self.so_far is so_far:  # in which it took no part meanwhile
            so_far.started += self.clock.now() - started

    def _note_rounds(self) -> None:
        """Tell of the rounds that are over, and end the epoch if the optimizer has."""
        self._tell_rounds()
        is_due = self.spreading.make()
        if self.optimizer.local_epoch != self.epoch:
            self._end_epoch()
        elif is_due:
            self._post()

    def leave(self) -> None:
        """Save this peer's progress, tell the others that it leaves, and disconnect from them.

        Raises what kept it from saving, on a full disk or without memory, after all else.
        """
        self.events.write("leaving", epoch=self.epoch)
        try:
            self._save(self.optimizer.state_averager.left_s)  # before others can hold it up
        finally:
            self.saved.set()
            self._tell_rounds()
            self.work.close()
            self._say_goodbye()
        self.events.write("left", epoch=self.optimizer.local_epoch, samples=self.samples, compute_s=self.compute_s)

    @property
    def parts(self) -> dict[str, Part]:
        """The processes and threads without which it cannot take part, by what they are."""
        return {
            CONNECTS: self.dht,
            "process that averages gradients": self.optimizer.grad_averager,
            "process that averages parameters": self.optimizer.state_averager,
            "thread that follows the others' progress": self.optimizer.tracker,
        }

    @property
    def rests(self) -> bool:
        """Whether it has left because this month's traffic is used, and comes back in the next one."""
        return self.holder.rests and self._is_finished and not self._is_complete

    @property
    def _is_finished(self) -> bool:
        return self.holder.is_finished(self.epoch, self._has_handed_in)

    @property
    def _is_complete(self) -> bool:
        return self.epoch >= self.card.optimizer.total_epochs

    def _end_data(self, stop: threading.Event) -> None:
        """End the wait for data, which a slow network may make long, when this peer is to leave."""
        stop.wait()
        self.batches.close()

    @property
    def _peers(self) -> int:
        return self.optimizer.tracker.global_progress.num_peers

    def _compute_gradient(self, batches: Sequence[Batch]) -> list[float] | None:
        """Return the mean loss of each batch, or None if one of them or the gradient is not finite."""
        found = self.work.gradient(batches)
        if found.is_finite:
            return found.losses
        self.events.write("skipped", loss=str(found.loss), grad_norm=str(found.norm), loss_scale=found.scale)
        self.optimizer.zero_grad(set_to_none=False)
        if not found.is_overflow:
            self._roll_back_if_broken()
        return None

    def _end_epoch(self) -> None:
        ended, self.so_far = self.so_far, EpochSoFar(self.clock.now())
        if not ended.losses:  # it was ended by others, while this peer computed nothing
            self.epoch, self.so_far.receipts = self.optimizer.local_epoch, ended.receipts
            self._roll_back_if_broken()
            return
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
        give_back()

    def _roll_back_if_broken(self) -> None:
        """Go back to the last snapshot if a parameter is no longer finite."""
        if torch.nn.utils.get_total_norm(self.model.parameters()).isfinite():
            return
        self._roll_back("parameters were no longer finite")

    def _roll_back(self, error: str, patience_s: float | None = None) -> None:
        restore_snapshot(self.optimizer, self.snapshot, patience_s)
        self.epoch = self.optimizer.local_epoch
        self.events.write("rolled_back", epoch=self.epoch, error=error)
