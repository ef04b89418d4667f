"""What a trainer tells while it works: a record of itself for the others, and what it sees of them in its folder."""

import contextlib
import logging
import threading
import time
from pathlib import Path

import hivemind

from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.rounds import LeftOut, ParameterRound
from dalle_lib.swarm.peer.computing.work import Work
from dalle_lib.swarm.peer.holding import Holder
from dalle_lib.swarm.peer.membership import Membership
from dalle_lib.swarm.peer.metrics import COMPLETE_EXPIRES_S, EXPIRES_S, MetricsBoard
from dalle_lib.swarm.peer.sleeping import AwakeClock
from dalle_lib.swarm.peer.spreading import Spreading
from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.evidence import witness
from dalle_lib.swarm.process.settings import ANONYMOUS, PeerSettings
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus
from dalle_lib.version import __version__

logger = logging.getLogger(__name__)

STATUS_EVERY_S, POST_EVERY_S = 3.0, 20.0
"""Seconds between looks at the swarm, and between a peer's own records while an epoch lasts, which expire."""
PUBLISH_EVERY_S = 60.0
"""Seconds between republications of an access token that was not renewed, and between checks of the clock."""


class Telling:
    """The part of a trainer that tells others about it; its attributes are the trainer's."""

    settings: PeerSettings
    dht: hivemind.DHT
    board: MetricsBoard
    membership: Membership
    events: EventLog
    optimizer: CollaborativeOptimizer
    work: Work
    holder: Holder
    clock: AwakeClock
    spreading: Spreading
    _is_complete: bool
    """Whether it has the run's last epoch."""
    _posted: float
    """When it last told the others of itself, in seconds of `time.monotonic`."""
    card: RunCard
    folder: Path
    epoch: int
    last_loss: float | None
    witnessed: str
    trained: str
    joined_at: float
    samples: int
    compute_s: float
    counted: float
    sent_bytes: int
    received_bytes: int

    def _tell_rounds(self) -> None:
        """Write what became of rounds since the last call, and what was wrong with other peers."""
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
            samples_per_s=0.0 if self.holder.hold else float(self.optimizer.tracker.performance_ema.samples_per_second),
            loss=self.last_loss,
            started_at=self.joined_at,
            compute_s=self.compute_s,
            counted=self.counted,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            hardware=self.work.devices.name,
            kit=__version__,
            team=self.settings.team,
            anonymous=self.settings.anonymous,
            witnessed=self.witnessed,
            trained=self.trained,
            held="" if self.holder.hold is None else self.holder.hold.reason,
            sketch=self.spreading.text,
        )
        self._posted, is_last = time.monotonic(), is_leaving and self._is_complete
        self.board.post(self.dht, status, is_leaving, COMPLETE_EXPIRES_S if is_last else EXPIRES_S)

    def _say_goodbye(self) -> None:
        """Tell the others that this peer leaves, and disconnect from them.

        What keeps it from that is logged: a system that shuts down may have ended the process that connects it, of
        which each call would wait for LOOK_S.
        """
        if not self.dht.is_alive():
            logger.warning("the others were not told that this peer leaves: it is not connected any more")
            return
        try:
            self._write_status()
            self._post(is_leaving=True)
            self.optimizer.shutdown()
        except Exception:  # whatever it is: all that matters to this peer is saved
            logger.exception("the others were not told that this peer leaves")

    def _report_status(self, stop: threading.Event) -> None:
        """Write what this peer sees of the swarm every few seconds, until it leaves.

        What others know for a time only is told at once after this process has slept.
        """
        published, expires, held = time.monotonic(), self.membership.expires, self.holder.hold
        while not stop.wait(STATUS_EVERY_S):
            if (slept_s := self.clock.slept_s()) is not None:
                with contextlib.suppress(OSError):  # a full disk keeps the others from nothing that they are told
                    self.events.write("woke", seconds=slept_s)
            try:
                is_due = slept_s is not None or self.holder.hold != held
                if is_due or time.monotonic() - self._posted > POST_EVERY_S:
                    held = self.holder.hold
                    self._post()
                self._write_status()
                if (problem := self.optimizer.tracker.who_reduces.due()) is not None:
                    self.events.write("problem", peer=str(self.dht.peer_id), problem=problem)
                is_due = slept_s is not None or self.membership.expires != expires
                if is_due or time.monotonic() - published > PUBLISH_EVERY_S:
                    published, expires = time.monotonic(), self.membership.expires
                    self.membership.publish(self.dht)
                    if (problem := self.membership.clock_problem(self.dht)) is not None:
                        self.events.write("problem", peer=str(self.dht.peer_id), problem=problem)
            except Exception:  # whatever it is, also no memory: others must be told again, and given the access token
                logger.exception("the others were not told of this peer")

    def _write_status(self) -> None:
        """Write what this peer sees of the swarm. A full disk, or a hash table that hangs, is logged."""
        progress = self.optimizer.tracker.global_progress
        try:
            peers = self.board.read(self.dht)
            self.spreading.see(peers)
            SwarmStatus(
                time=time.time(),
                epoch=max(progress.epoch, self.epoch),
                total_epochs=self.card.optimizer.total_epochs,
                samples_in_epoch=progress.samples_accumulated,
                target_batch_size=self.card.averaging.target_batch_size,
                peers=peers,
            ).write(self.folder)
        except (OSError, TimeoutError):
            logger.exception("this look at the swarm failed")
