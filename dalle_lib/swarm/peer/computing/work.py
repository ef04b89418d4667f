"""Work: the computing of one trainer, and what it tells of it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice

import torch

from dalle_lib.machine import NotEnoughRoom
from dalle_lib.model import DALLE
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch, TrainingBatches
from dalle_lib.swarm.peer.computing.computer import Computer, Gradient
from dalle_lib.swarm.peer.computing.devices import Devices
from dalle_lib.swarm.peer.computing.pace import Pace
from dalle_lib.swarm.peer.computing.room import is_out_of_memory
from dalle_lib.swarm.peer.computing.trials import Trials

logger = logging.getLogger(__name__)


class Work:
    """Computes gradients at a peer's pace. `tell` gets the fields of an event whenever the way to compute changes."""

    def __init__(
        self,
        model: DALLE,
        device: torch.device,
        pace: Pace,
        tell: Callable[..., None],
        further: Sequence[torch.device] = (),
        gpu_share: float = 1.0,
    ) -> None:
        """Compute on `device`, where the model is, and by a worker on each of the `further` ones."""
        self.computer = Computer(model, device, lambda _, why: self._changed(why))
        self.devices, self.pace = Devices(self.computer, further, self._changed, gpu_share), pace
        self._tell, self._peers, self._told_batch, self._why = tell, 1, 0, ""
        self.is_new = True
        """Whether its way is still to be chosen."""

    def choose_way(self, peers: int, trains_for_s: float, is_over: Callable[[], bool]) -> None:
        """Try for some seconds how this device computes fastest, and tell it.

        Call it before other threads use the device, and after all processes of this peer are forked. Raises
        NotEnoughRoom if one sample does not fit into memory, and here and later Interrupted as soon as `is_over`.
        """
        self.is_new, self._peers, kind = False, peers, self.computer.device.type
        self.computer.is_over = is_over
        idle = self.devices.leave_out(self.pace.most)
        limit = self.devices.most_each(self.pace.most)
        self.devices.share_threads()
        trials = Trials(self.computer, limit, trains_for_s=trains_for_s, is_over=is_over)
        trials.find()
        self._changed(idle, tried=[(each.way.in_words(kind), each.seconds, each.problem) for each in trials.done])
        self.devices.start(limit, trains_for_s, is_over)

    def sizes(self, peers: int) -> tuple[int, int]:
        """Return the samples of the next batch, and the number of batches before the next look at the swarm."""
        self._peers = peers
        if self._batch != self._told_batch:  # peers have come or gone
            self._changed(self._why)
        return self.pace.sizes(self.devices.way, peers)

    def gradient(self, batches: Sequence[Batch]) -> Gradient:
        """Return what `Computer.gradient` does, and tell samples a second where no trial has."""
        way, started = self.computer.way, time.monotonic()
        found = self.devices.gradient(batches)
        self.pace.computed(sum(map(len, batches)), time.monotonic() - started)
        if way.samples_per_s is None and way == self.computer.way:
            self.computer.way = replace(way, samples_per_s=self.devices.own_rate)
            self._changed(self._why)
        return found

    def next_batches(self, batches: TrainingBatches, peers: int) -> list[Batch]:
        """Return the batches until the next look at the swarm; none if the data have ended.

        Where memory runs out, they are smaller from then on. Raises NotEnoughRoom if there is none for one sample, and
        the error itself where the size of a batch is part of the recipe.
        """
        made: list[Batch] = []
        while True:
            batches.batch_size, number = self.sizes(peers)
            try:
                for batch in islice(batches, number):
                    made.append(batch)
                return made
            except Exception as error:
                if not is_out_of_memory(error) or self.pace.steps_itself:
                    raise
                told = in_one_line(error)[:200]
            self._take_less(batches.batch_size, told)
            if made:
                return made  # what failed comes again

    @contextmanager
    def less_without_memory(self, batches: Sequence[Batch], drop: Callable[[str], None]) -> Iterator[None]:
        """Go on with fewer samples at a time, if there may be fewer, where memory runs out in the block.

        `drop` is told why first.
        """
        try:
            yield
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            told = in_one_line(error)[:200]
        drop("memory ran out while this peer handed them over")  # they may be in the sums in part
        with suppress(NotEnoughRoom):  # one sample was computed, and the next hand-over may find more
            self.computer.take_less(max(map(len, batches)), told)

    def close(self) -> None:
        """Compute nothing more."""
        self.devices.close()

    def _take_less(self, samples: int, told: str) -> None:
        """Let all devices together compute fewer than so many samples at a time. Raises NotEnoughRoom."""
        if samples == 1 or self.devices.count == 1:
            self.computer.take_less(samples, told)
            return
        self.computer.free()
        self.pace.limit = samples // 2
        logger.info("memory ran out: %s", told)
        self._changed(f"memory ran out with {samples} at a time")

    @property
    def _batch(self) -> int:
        """Samples at a time, no more than are due with so many peers."""
        return min(self.devices.way.batch, self.pace.sizes(self.devices.way, self._peers)[0])

    def _changed(self, why: str = "", tried: Sequence[tuple[str, float, str]] = ()) -> None:
        self._told_batch, self._why = self._batch, why
        way = replace(self.devices.way, batch=self._told_batch)
        told = way.in_words(self.computer.device.type)
        if self.devices.count > 1:
            told = f"{self.devices.name}, {told}"
        self._tell(**asdict(way), told=told, why=why, tried=tried)
