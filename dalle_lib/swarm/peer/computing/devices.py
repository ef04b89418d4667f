"""Devices: the gradient of some batches on all devices of a trainer, each of which computes a share of the rows."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from dalle_lib.machine import name_of
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.computer import Computer, Gradient
from dalle_lib.swarm.peer.computing.shared import Computed, Job, Order, SharedFloats, copy_into
from dalle_lib.swarm.peer.computing.way import Way
from dalle_lib.swarm.peer.computing.workers import Worker

logger = logging.getLogger(__name__)

PATIENCE_S, TIMES = 60.0, 10.0
"""Seconds that a worker may take for its share, at least, and times as long as this process took for its own."""
_EQUAL, _PARTS = 1.25, 16
"""Times as fast as the slowest device that all may be to get equal shares, and of how many parts shares are else."""
_KEEPS = 0.9
"""How much a device's samples a second depend on those before the last gradient."""


@dataclass(frozen=True)
class Share:
    """The rows that one device computes: a piece of some batches, each with the batch's number."""

    pieces: list[tuple[int, Batch]]

    def __len__(self) -> int:
        return sum(len(piece) for _, piece in self.pieces)

    @property
    def batches(self) -> list[Batch]:
        """The pieces without the numbers."""
        return [piece for _, piece in self.pieces]


@dataclass(frozen=True)
class Part:
    """The gradient of a share: in a worker's memory, or, without one, in the parameters' `.grad`."""

    share: Share
    found: Gradient
    memory: SharedFloats | None = None


class Devices:
    """Computes gradients of one model on this process's device, and on each further one by a worker of its own.

    A worker that ends, hangs or has no room for one sample costs its share of one gradient in time, and nothing else:
    this process computes the same rows, and the worker is started again, a few times at most. `tell` is told when a
    worker begins or ceases to compute, or computes otherwise, and why.
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
        """Samples a second of this process, lately."""
        self._given: SharedFloats | None = None
        self.workers: list[Worker] = []

    @property
    def way(self) -> Way:
        """The way of this process, with the samples at a time, and a second, of all devices that compute."""
        if not (ready := self._ready):
            return self.first.way
        ways = [self.first.way, *(worker.way for worker in ready)]
        batch, rates = sum(way.batch for way in ways), [way.samples_per_s for way in ways]
        return replace(ways[0], batch=batch, samples_per_s=None if None in rates else sum(rates))

    @property
    def count(self) -> int:
        """Devices, also those that do not compute now."""
        return 1 + len(self.further)

    @property
    def name(self) -> str:
        """What computes, such as "2 x Tesla T4", in at most 60 letters."""
        given_up = [worker.is_given_up for worker in self.workers] or [False] * len(self.further)
        used = [self.first.device, *(on for on, is_lost in zip(self.further, given_up, strict=True) if not is_lost)]
        counted = Counter(map(name_of, used)).items()
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted)[:60]

    def start(self) -> None:
        """Start the workers' processes, which load for some seconds. Devices that are processors share the threads.

        Call it after this process has forked others, and when it has the threads and the niceness that it keeps.
        """
        threads = torch.get_num_threads()
        if self.further and self.first.device.type == "cpu":
            threads = max(1, threads // [self.first.device, *self.further].count(self.first.device))
            torch.set_num_threads(threads)
        self.first.use(replace(self.first.way, threads=threads))
        if not self.further:
            return
        count = sum(parameter.numel() for parameter in self.first.model.parameters())
        self._given, model = SharedFloats(count), self.first.model.config
        jobs = [Job(model, str(device), threads, self._gpu_share) for device in self.further]
        self.workers = [Worker(job, self._given, SharedFloats(count)) for job in jobs]
        for worker in self.workers:
            worker.start()

    def order(self, limit: int, trains_for_s: float) -> None:
        """Let each worker compute as this process does; one on a device of another kind tries what is best there."""
        kind = name_of(self.first.device)
        for worker in self.workers:
            is_equal = name_of(torch.device(worker.job.device)) == kind
            worker.order(Order(self.first.way if is_equal else None, limit, trains_for_s))

    def sent(self, batch: Batch) -> Batch:
        """Return a batch on the device, or here where several devices share it."""
        return batch if self.further else self.first.sent(batch)

    def gradient(self, batches: Sequence[Batch]) -> Gradient:
        """Set the parameters' `.grad` to the mean gradient over the samples of these batches.

        Raises NotEnoughRoom if not even one sample fits into the memory of this process's device.
        """
        self._look()
        shares = self._shares(batches)
        workers = [(worker, share) for worker, share in zip(self._ready, shares[1:], strict=True) if len(share)]
        if workers:
            copy_into(self._given.like(list(self.first.model.parameters())), list(self.first.model.parameters()))
        for worker, share in workers:
            worker.ask(share.batches)
        own = self._computed(shares[0])
        ends_at = time.monotonic() + max(PATIENCE_S, TIMES * len(shares[0]) / self.own_rate)
        parts, lost = [], []
        for worker, share in workers:
            part = self._answer(worker, share, ends_at)
            parts += [] if part is None else [part]
            lost += [(worker, share)] if part is None else []
        if lost:
            parts.append(self._kept(own, lost[0][0].gradient))
            own = self._computed(Share([piece for _, share in lost for piece in share.pieces]))
        return self._sum(batches, [own, *parts])

    def close(self) -> None:
        """End the workers, and give the memory back that they share."""
        for worker in self.workers:
            worker.end()
            worker.gradient.close()
        if self._given is not None:
            self._given.close()
        self.workers, self._given = [], None

    @property
    def _ready(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_ready]

    def _look(self) -> None:
        """Take in which workers have become ready, and which have ended before they were."""
        for worker in self.workers:
            if (told := worker.look()) is not None:
                self._tell(told)

    def _shares(self, batches: Sequence[Batch]) -> list[Share]:
        """Return the rows of each device, as many as fit its speed; at least one for this process."""
        rates = [self.own_rate or self.first.way.samples_per_s, *(worker.rate for worker in self._ready)]
        counts = shares_of(sum(map(len, batches)), rates)
        return cut(batches, counts)

    def _computed(self, share: Share) -> Part:
        """Compute a share in this process."""
        started = time.monotonic()
        found = self.first.gradient(share.batches)
        rate = len(share) / max(time.monotonic() - started, 1e-9)
        self.own_rate = rate if self.own_rate is None or not self.workers else smooth(self.own_rate, rate)
        return Part(share, found)

    def _answer(self, worker: Worker, share: Share, ends_at: float) -> Part | None:
        """Return what a worker has computed, or None if nothing comes from it any more."""
        answer = worker.answer(ends_at)
        if not isinstance(answer, Computed):
            again = worker.start_again()
            after = "starts again" if again else "is not used any more"
            self._tell(f"{worker.job.device} {answer.problem}: {self.first.device} computed its share, and it {after}")
            return None
        rate = len(share) / max(answer.seconds, 1e-9)
        worker.rate = rate if worker.rate is None else smooth(worker.rate, rate)
        worker.way = replace(answer.way, samples_per_s=answer.way.samples_per_s or worker.rate)
        if answer.why:
            self._tell(f"{worker.job.device}: {answer.why}")
        return Part(share, Gradient(answer.losses, answer.norm, answer.scale), worker.gradient)

    def _kept(self, own: Part, memory: SharedFloats) -> Part:
        """Return a part with its gradient in the memory of a worker that has ended."""
        copy_into(memory.like(self.first.parameters), [parameter.grad for parameter in self.first.parameters])
        return replace(own, memory=memory)

    def _sum(self, batches: Sequence[Batch], parts: list[Part]) -> Gradient:
        """Add all parts to the first, which is in `.grad`, each by its samples, and return what is known of the sum."""
        if len(parts) == 1:
            return parts[0].found
        samples, parameters = sum(map(len, batches)), self.first.parameters
        gradients = [parameter.grad for parameter in parameters]
        torch._foreach_mul_(gradients, len(parts[0].share) / samples)
        for part in parts[1:]:
            for gradient, added in zip(gradients, part.memory.like(parameters), strict=True):
                gradient.add_(added.to(gradient.device, gradient.dtype), alpha=len(part.share) / samples)
        losses = [0.0] * len(batches)
        for part in parts:
            for (number, piece), loss in zip(part.share.pieces, part.found.losses, strict=True):
                losses[number] += loss * len(piece) / len(batches[number])
        broken = [part.found.scale for part in parts if not part.found.is_finite]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        return Gradient(losses, norm, min(broken, default=parts[0].found.scale))

    def _tell(self, why: str) -> None:
        logger.info("%s", why)
        self.tell(why)


def smooth(before: float, new: float) -> float:
    """Return a rate that follows new ones slowly."""
    return _KEEPS * before + (1 - _KEEPS) * new


def shares_of(samples: int, rates: Sequence[float | None]) -> list[int]:
    """Return how many of some samples each device gets, by its samples a second; an unknown rate is the others' mean.

    The first gets at least one. Devices of about one speed get as many as each other, and shares are parts of _PARTS:
    compiled layers and recorded steps are for batches of one size, and each new size compiles anew.
    """
    known = [rate for rate in rates if rate]
    mean = sum(known) / len(known) if known else 1.0
    full = [rate or mean for rate in rates]
    if max(full) < _EQUAL * min(full):
        full, parts = [1.0] * len(full), samples
    else:
        parts = min(samples, _PARTS)
    ends = [samples * round(parts * end / sum(full)) // parts for end in accumulate(full)]
    ends = [max(1, end) for end in ends[:-1]] + [samples]
    return [end - begin for begin, end in pairwise([0, *ends])]


def cut(batches: Sequence[Batch], counts: Sequence[int]) -> list[Share]:
    """Return the rows of some batches as shares of so many rows, one after another."""
    limits, shares = list(pairwise([0, *accumulate(map(len, batches))])), []
    for begin, end in pairwise([0, *accumulate(counts)]):
        pieces = []
        for number, (first, last) in enumerate(limits):
            if (low := max(begin, first)) < (high := min(end, last)):
                pieces.append((number, _piece(batches[number], low - first, high - first)))
        shares.append(Share(pieces))
    return shares


def _piece(batch: Batch, begin: int, end: int) -> Batch:
    if (begin, end) == (0, len(batch)):
        return batch
    return Batch(batch.text[begin:end], batch.codes[begin:end], batch.input_codes[begin:end])
