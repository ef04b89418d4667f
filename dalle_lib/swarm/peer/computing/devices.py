"""Devices: the gradient of some batches on all devices of a trainer, each of which computes a share of the rows."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from dalle_lib.amounts import count
from dalle_lib.machine import name_of, names_of
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.computer import Computer, Gradient
from dalle_lib.swarm.peer.computing.room import is_out_of_memory
from dalle_lib.swarm.peer.computing.shared import Job, SharedFloats, copy_into
from dalle_lib.swarm.peer.computing.trials import MAX_AT_ONCE, power_of_two
from dalle_lib.swarm.peer.computing.way import Way
from dalle_lib.swarm.peer.computing.workers import Worker, WorkerFailed

logger = logging.getLogger(__name__)

PATIENCE_S, TIMES = 15.0, 3.0
"""Seconds that a worker is waited for when this process has its own share, at least, and times as long as that took."""


class Devices:
    """Computes gradients of one model on this process's device, and on each further one by a worker of its own.

    Where a worker ends, hangs or has no room for one sample, this process computes all rows of the step, and the worker
    is started again, unless it fails again and again. `tell` is told when a worker begins or ceases to compute, or
    computes otherwise, and why.
    """

    def __init__(
        self,
        first: Computer,
        further: Sequence[torch.device] = (),
        tell: Callable[[str], None] = lambda why: None,
        gpu_share: float = 1.0,
    ) -> None:
        """Start no worker yet."""
        self.first, self.further, self.tell, self._gpu_share = first, list(further), tell, gpu_share
        self.own_rate: float | None = None
        """Samples a second of this process, in the last gradient."""
        self.workers: list[Worker] = []
        self._memory: SharedFloats | None = None
        self._speed: float | None = None
        self._is_over: Callable[[], bool] = lambda: False

    @property
    def way(self) -> Way:
        """The way of this process, with the samples at a time, and a second, of all devices that compute."""
        ways = [self.first.way, *(worker.way for worker in self.workers if worker.way is not None)]
        rates = [way.samples_per_s for way in ways]
        batch = min(sum(way.batch for way in ways), max(MAX_AT_ONCE, ways[0].batch))
        return replace(ways[0], batch=batch, samples_per_s=None if None in rates else sum(rates))

    @property
    def count(self) -> int:
        """Devices, also those that do not compute now."""
        return 1 + len(self.further)

    @property
    def name(self) -> str:
        """What computes, such as "2 x Tesla T4", in at most 60 letters."""
        lost = {worker.part for worker in self.workers if worker.is_given_up}
        used = [device for part, device in enumerate(self.further, start=1) if part not in lost]
        return names_of([self.first.device, *used])

    def leave_out(self, most: int) -> str:
        """Use no more devices than a batch has samples, at most; return what there is to say of the others."""
        self.further, idle = self.further[: most - 1], self.further[most - 1 :]
        return f"{', '.join(map(str, idle))} left out: {count(most, 'sample')} at a time, at most" if idle else ""

    def most_each(self, most: int) -> int:
        """Return how many samples of a batch of `most` a device is to try at a time, so that its share is one piece.

        Devices of one name share alike, and trials take powers of two; of others, one may get nearly all.
        """
        names = {name_of(device) for device in [self.first.device, *self.further]}
        is_alike = self.count > 1 and len(names) == 1
        return power_of_two(2 * -(-most // self.count) - 1) if is_alike else most

    def share_threads(self) -> None:
        """Divide the threads that this process has among the devices that are processors; compute on its part."""
        if self.first.device.type == "cpu":
            processors = [self.first.device, *self.further].count(self.first.device)
            torch.set_num_threads(max(1, torch.get_num_threads() // processors))
        self.first.use(replace(self.first.way, threads=torch.get_num_threads()))

    def start(self, limit: int, trains_for_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Start the workers' processes, which load for some seconds; each computes as this process does.

        One on a device of another kind tries what is best there, with at most `limit` samples. Call it when this
        process has its way, and after it has forked others. `is_over` says that the peer is to leave.
        """
        self._speed, self._is_over = self.first.way.samples_per_s, is_over
        if not self.further:
            return
        parameters = list(self.first.model.parameters())
        try:
            self._memory = SharedFloats(self.count, sum(parameter.numel() for parameter in parameters))
        except OSError as error:
            self.further = []
            self._tell(f"{self.first.device} computes alone, as no memory can be shared: {in_one_line(error)}")
            return
        copy_into(self._memory.like(0, parameters), parameters)
        kind, threads = name_of(self.first.device), torch.get_num_threads()
        for part, device in enumerate(self.further, start=1):
            way = self.first.way if name_of(device) == kind else None
            job = Job(self.first.model.config, str(device), threads, self._gpu_share, way, limit, trains_for_s)
            self.workers.append(Worker(job, self._memory, part))
        self._look()

    def sent(self, batch: Batch) -> Batch:
        """Return a batch on the device, or here where several devices share it."""
        return batch if any(not worker.is_given_up for worker in self.workers) else self.first.sent(batch)

    def gradient(self, batches: Sequence[Batch]) -> Gradient:
        """Set the parameters' `.grad` to the mean gradient over the samples of these batches.

        Raises NotEnoughRoom if not even one sample fits into the memory of this process's device.
        """
        self._look()
        workers, shares = self._shares(batches)
        if not workers:
            return self._own(batches)
        parameters = list(self.first.model.parameters())
        copy_into(self._memory.like(0, parameters), parameters)
        try:
            for worker, share in zip(workers, shares[1:], strict=True):
                worker.ask(share)
            started = time.monotonic()
            own = self._own(shares[0])
            now = time.monotonic()
            ends_at = now + max(PATIENCE_S, TIMES * (now - started))
            found = [own, *(self._answer(worker, ends_at) for worker in workers)]
        except BaseException:
            for worker in workers:
                worker.end()  # or its answer would be taken for that to the next rows
            raise
        if None in found:
            return self._own(batches)
        try:
            return self._sum(found, shares, workers)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            told = in_one_line(error)[:200]
        self.first.take_less(max(map(len, shares[0])), told)
        return self._own(batches)

    def close(self) -> None:
        """End the workers, and give the memory back that they share."""
        for worker in self.workers:
            worker.end()
        if self._memory is not None:
            self._memory.close()
        self.workers, self._memory = [], None

    def _look(self) -> None:
        """Start the workers that are to start, and take in which have become ready, or have failed before."""
        for worker in self.workers:
            try:
                if worker.look():
                    self._tell(f"{worker.job.device} computes a share")
                    self.tell("")  # that is no reason for what comes later
            except WorkerFailed as error:
                self._failed(worker, error)

    def _shares(self, batches: Sequence[Batch]) -> tuple[list[Worker], list[list[Batch]]]:
        """Return the workers that get rows of each batch, and the pieces of this process and of each of them."""
        shortest = min(map(len, batches))
        workers = [worker for worker in self.workers if worker.way is not None][: shortest - 1]
        speeds = self._speeds(workers)
        workers = [worker for worker, speed in zip(workers, speeds[1:], strict=True) if shortest * speed >= sum(speeds)]
        return workers, cut(batches, self._speeds(workers))

    def _speeds(self, workers: Sequence[Worker]) -> list[float]:
        """Return the speeds of this process and of some workers, which all count as equal if one is not known."""
        speeds = [self._speed, *(worker.speed for worker in workers)]
        return [1.0] * len(speeds) if None in speeds else speeds

    def _own(self, batches: Sequence[Batch]) -> Gradient:
        """Compute batches in this process."""
        started = time.monotonic()
        found = self.first.gradient(batches)
        self.own_rate = sum(map(len, batches)) / max(time.monotonic() - started, 1e-9)
        return found

    def _answer(self, worker: Worker, ends_at: float) -> Gradient | None:
        """Return what a worker has computed, or None if nothing comes from it any more."""
        try:
            answer = worker.answer(ends_at, self._is_over)
        except WorkerFailed as error:
            self._failed(worker, error)
            return None
        if answer.why:
            self._tell(f"{worker.job.device}: {answer.why}")
        return answer.found

    def _failed(self, worker: Worker, error: WorkerFailed) -> None:
        """End a worker, which may start again, and tell why."""
        worker.fail()
        after = "is not used any more" if worker.is_given_up else "starts again"
        self._tell(f"{worker.job.device} dropped out ({error}), and {after}")

    def _sum(self, found: list[Gradient], shares: list[list[Batch]], workers: list[Worker]) -> Gradient:
        """Add all gradients to this process's, each by its samples, and return what is known of the sum."""
        rows = [list(map(len, share)) for share in shares]
        own, *others = (sum(each) / sum(map(sum, rows)) for each in rows)
        parameters = self.first.parameters
        gradients = [parameter.grad for parameter in parameters]
        torch._foreach_mul_(gradients, own)
        for worker, weight in zip(workers, others, strict=True):
            for gradient, added in zip(gradients, self._memory.like(worker.part, parameters), strict=True):
                gradient.add_(added.to(gradient.device, gradient.dtype), alpha=weight)
        losses = np.average([each.losses for each in found], axis=0, weights=rows).tolist()
        broken = [each.scale for each in found if not each.is_finite]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        return Gradient(losses, norm, min(broken, default=found[0].scale))

    def _tell(self, why: str) -> None:
        logger.info("%s", why)
        self.tell(why)


def rows_each(rows: int, speeds: Sequence[float]) -> list[int]:
    """Return how many of some rows each device computes, by its speed; at least one, as there are as many."""
    counts = []
    for number, speed in enumerate(speeds):
        left, after = rows - sum(counts), len(speeds) - number - 1
        counts.append(min(max(1, round(left * speed / sum(speeds[number:]))), left - after))
    return counts


def cut(batches: Sequence[Batch], speeds: Sequence[float]) -> list[list[Batch]]:
    """Return for each device a piece of each batch, of as many rows as fit its speed."""
    pieces = []
    for batch in batches:
        counts = rows_each(len(batch), speeds)
        parts = (ids.split(counts) for ids in (batch.text, batch.codes, batch.input_codes))
        pieces.append([Batch(*piece) for piece in zip(*parts, strict=True)])
    return [list(share) for share in zip(*pieces, strict=True)]
