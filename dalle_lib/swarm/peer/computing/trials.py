"""Trials of a few steps at the start: how many samples at a time, and which ways to compute pay for themselves."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from dalle_lib.machine import NotEnoughRoom, has_bf16_instructions
from dalle_lib.model import ModelConfig
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.room import fits, forecast, is_out_of_memory
from dalle_lib.swarm.peer.computing.way import Way

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 64
"""Samples at a time, at most: a run's monitor recomputes no larger batches."""
USUAL = 16
"""Samples at a time where a busy machine leaves no time to try so many."""
MAX_STEP_S = 5.0
"""Seconds that a batch may take: a peer looks at the swarm between batches."""
BUDGET_S = {"cpu": 3.0, "cuda": 20.0}
"""Seconds within which trials end, by what earlier ones took; what compiling takes is not counted."""
PAYS_WITHIN_S = 1800.0
"""Seconds of training within which compiling must win more time than it takes."""
COMPILE_S, COMPILED_GAIN = 180.0, 1.4
"""What is assumed of compiling on a GPU before it is tried: seconds, and how many times faster layers are then."""
RECORDED_STEP_S = 0.1
"""Seconds of a step beyond which it is not recorded: an H200 won a factor of 1.6 to 5 with small models, 1.05 with one
of 3 s, whose recording took 13 s (benchmarks/results/gpu_trials.json)."""
MORE_REVERSIBLE, RERUN = 4, 4 / 3
"""How many times more samples at a time layers that run again are tried with, and how many times longer they take."""
BETTER = 1.03
"""How many times faster another way must be to be taken: less is chance."""
SLOWER = 0.9
"""Share of the best samples a second below which larger batches are not tried."""
QUICK_S, REPEATS = 0.1, 3
"""A step is repeated up to so often, as long as all together take less than so many seconds."""
_SIDE = 512
"""Rows of the matrix product by which the speed of a processor is guessed."""
MAX_OVERFLOWS = 16
"""Steps of a trial, at most, that the loss scale needs to become right."""


@dataclass(frozen=True)
class Trial:
    """A way that was tried, with the seconds that the trial took."""

    way: Way
    seconds: float
    problem: str = ""
    """Why it cannot be used here, if it cannot."""


class Trials:
    """Tries ways on random samples, and leaves the computer with the fastest one."""

    def __init__(
        self,
        computer: Computer,
        limit: int,
        *,
        budget_s: float | None = None,
        trains_for_s: float = PAYS_WITHIN_S,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`limit` is the most samples at a time. `budget_s` is BUDGET_S of the device unless it is given.

        `trains_for_s` is for how long the peer will train, as far as it is known; `is_over` says that it is to leave.
        """
        self.computer, self.limit = computer, min(limit, MAX_AT_ONCE)
        self.budget_s = BUDGET_S.get(computer.device.type, BUDGET_S["cpu"]) if budget_s is None else budget_s
        self.pays_within_s, self.is_over = min(PAYS_WITHIN_S, trains_for_s), is_over
        self.done: list[Trial] = []
        self._first = computer.way
        self._ends_at = time.monotonic() + self.budget_s

    def find(self) -> Way:
        """Try ways until the time for it is over; return the fastest, which the computer uses from now on.

        Activations are kept from the first trial on where they fit by forecast, and layers run again where they do
        not. Where one sample would take longer than all trials may, it is the way of before, one sample at a time.
        Raises NotEnoughRoom if one sample does not fit into memory.
        """
        computer = self.computer
        best = replace(computer.way, batch=1, samples_per_s=None)
        if _forecast_s(computer, best) < self.budget_s:
            has_room = self._fits(replace(best, is_reversible=False))
            self._first = best if has_room is None else replace(best, is_reversible=not has_room)
            best = self._begun()
            for change in self._changes():
                if self._is_late:
                    break
                best = self._better(best, change)
        computer.use(best)
        if best.is_recorded:  # now, while no other thread uses the GPU
            computer.gradient([random_batch(computer.model.config, best.batch)])
        computer.forget()
        return computer.way

    def _begun(self) -> Way:
        """Return the first way, or float32 where 16 bits do not work, with as many samples at a time as are fastest."""
        try:
            return self._grown(self._first)
        except NotEnoughRoom:
            raise
        except Exception:  # what another precision lacks fails in many ways, and is among the trials
            if self._first.precision == "float32":
                raise
        self.computer.free()
        self._first = replace(self._first, precision="float32")
        return self._grown(self._first)

    @property
    def _is_late(self) -> bool:
        return self.is_over() or time.monotonic() > self._ends_at

    def _changes(self) -> Iterator[dict[str, object]]:
        """Yield what else to try, each on top of the best until then."""
        device = self.computer.device.type
        if device == "cpu" and has_bf16_instructions():
            yield {"precision": "bfloat16"}
        yield {"is_reversible": not self._first.is_reversible}
        if device == "cuda":
            if compiling_pays(self.pays_within_s):
                yield {"is_compiled": True}
            yield {"is_recorded": True}

    def _better(self, best: Way, change: dict[str, object]) -> Way:
        """Return the best way with a change if that is faster, else as it was."""
        other = replace(best, **change)
        if other == best:
            return best
        if other.is_reversible != best.is_reversible:  # then another number of samples fits
            size = self._more_reversible(best) if other.is_reversible else 1
            other = replace(other, batch=size)
            found = self._grown_from(other) if size and self._fits(other) is not False else None
        else:
            found = self._measured(other) if self._is_worth_trying(other) else None
        return found if found and found.samples_per_s > BETTER * (best.samples_per_s or 0.0) else best

    def _more_reversible(self, kept: Way) -> int:
        """Return with how many samples at a time layers that run again are tried first, or 0 if they cannot win.

        They take longer than kept ones with as many samples. So memory must refuse more of these.
        """
        rate = kept.samples_per_s or 0.0
        if 2 * kept.batch > self.limit or self._fits(replace(kept, batch=2 * kept.batch)):
            return 0
        for times in (MORE_REVERSIBLE, MORE_REVERSIBLE // 2):
            way = replace(kept, batch=times * kept.batch, is_reversible=True)
            is_quick = way.batch <= MAX_STEP_S * rate and not self._ends_late(way, RERUN)
            if way.batch <= self.limit and is_quick and self._fits(way) is not False:
                return way.batch
        return 0

    def _is_worth_trying(self, way: Way) -> bool:
        """Return whether a change of the best way, whose speed it still has, may win and is tried in time."""
        if way.is_recorded:
            is_short = way.batch <= RECORDED_STEP_S * (way.samples_per_s or math.inf)
            # A recording that fails in the middle never gives back what it took (torch 2.11).
            if not (is_short and self._fits(replace(way, batch=2 * way.batch))):
                return False
        return self._fits(way) is not False and not self._ends_late(way)

    def _fits(self, way: Way) -> bool | None:
        """Return whether memory has room for a way, by forecast; None if that has to be tried."""
        return fits(self.computer.model.config, way, self.computer.device)

    def _ends_late(self, way: Way, times: float = 1.0) -> bool:
        """Return whether a trial would end after the time for all, if a sample takes `times` what it last took."""
        like = [t for t in self.done if not (t.problem or t.way.is_compiled) and t.way.batch <= way.batch]
        if self._is_late or not like:
            return self._is_late
        last, rate = like[-1], like[-1].way.samples_per_s
        is_first = last is self.done[0]  # which also loads libraries and their kernels
        sample_s = 1 / rate if is_first and rate else last.seconds / last.way.batch
        return time.monotonic() + times * sample_s * way.batch > self._ends_at

    def _grown(self, first: Way) -> Way:
        """Return the first way with the number of samples at a time that is the fastest, or what fits at all."""
        if (found := self._grown_from(first)) is not None:
            return found
        self.computer.use(first)
        self.computer.gradient([random_batch(self.computer.model.config, 1)])  # may change the way
        return self._grown_from(self.computer.way) or self.computer.way

    def _grown_from(self, way: Way) -> Way | None:
        """Return the fastest way as `batch` is doubled again and again; None if none fits."""
        best = None
        while True:
            found = self._measured(way)
            if found is None:
                return best
            if best is None or found.samples_per_s > best.samples_per_s:
                best = found
            way = replace(way, batch=2 * way.batch)
            next_s = way.batch / found.samples_per_s
            is_slower = found.samples_per_s < SLOWER * best.samples_per_s
            if way.batch > self.limit or is_slower or next_s > MAX_STEP_S or self._fits(way) is False:
                return best
            if self._ends_late(way):
                return self._usual(best)

    def _usual(self, way: Way) -> Way:
        """Return a way for which there was no time to try more samples at a time, with as many as are usual."""
        usual = min(USUAL, self.limit, int(MAX_STEP_S * way.samples_per_s))
        larger = replace(way, batch=max(way.batch, power_of_two(max(1, usual))))
        return larger if self._fits(larger) else way

    def _measured(self, way: Way) -> Way | None:
        """Return a way with its samples a second, or None if it does not work here; the first one must."""
        began, batch = time.monotonic(), random_batch(self.computer.model.config, way.batch)
        problem, seconds, clock = "", [], _clock(self.computer.device)
        try:
            self.computer.use(way)
            if way.batch == 1 or self.computer.device.type == "cuda":
                self._warm(batch, way)
            while not seconds or (sum(seconds) < QUICK_S and len(seconds) < REPEATS and not self.is_over()):
                started = clock()
                self.computer.once([batch])
                seconds.append(clock() - started)
        except Exception as error:  # compilers and recordings fail in many ways, and nothing depends on them
            problem = in_one_line(error)[:200]
            logger.info("%s does not work here: %s", way.in_words(self.computer.device.type), problem)
            is_other = way.precision != self._first.precision or way.is_compiled or way.is_recorded
            if not (is_out_of_memory(error) or is_other):
                self.done.append(Trial(way, time.monotonic() - began, problem))
                raise
        self.done.append(Trial(way, time.monotonic() - began, problem))
        if problem:
            self.computer.free()
            return None
        found = replace(way, samples_per_s=way.batch / max(min(seconds), 1e-9))
        self.done[-1] = replace(self.done[-1], way=found)
        return found

    def _warm(self, batch: Batch, way: Way) -> None:
        """Compute a batch until its gradient is finite, so that kernels are chosen and the loss scale is right.

        Compiling is not counted among the seconds of the trials, because it was decided that it pays. Raises
        ArithmeticError if a gradient in 16 bits never is finite.
        """
        began = time.monotonic()
        for _ in range(MAX_OVERFLOWS):
            if self.computer.once([batch]).is_finite or self.is_over():
                break
        else:
            if way.precision != "float32":
                raise ArithmeticError(f"no finite gradient in {MAX_OVERFLOWS} steps")
        if way.is_compiled:
            self._ends_at += time.monotonic() - began


def _clock(device: torch.device) -> Callable[[], float]:
    """Return what tells seconds: on one thread of a processor its own time, which leaves out other programs."""
    return time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def power_of_two(number: int) -> int:
    """Return the largest power of two up to a number of at least 1."""
    return 1 << number.bit_length() - 1


def compiling_pays(trains_for_s: float) -> bool:
    """Return whether compiled layers win more time, by forecast, than compiling takes."""
    return trains_for_s * (1 - 1 / COMPILED_GAIN) > COMPILE_S


def random_batch(config: ModelConfig, samples: int) -> Batch:
    """Return random captions and codes, the same each time."""
    random = torch.Generator().manual_seed(0)
    text = torch.randint(1, config.text_vocab, (samples, config.text_length), generator=random)
    codes = torch.randint(config.image_vocab, (samples, config.image_length), generator=random)
    return Batch(text, codes, codes)


def _forecast_s(computer: Computer, way: Way) -> float:
    """Return the seconds that one sample takes on a processor, by its operations and a matrix product; else 0."""
    if computer.device.type != "cpu":
        return 0.0
    factor = torch.ones(_SIDE, _SIDE)
    seconds, clock = [], _clock(computer.device)
    for _ in range(3):
        started = clock()
        factor @ factor
        seconds.append(clock() - started)
    return forecast(computer.model.config, way)[1] * min(seconds) / (2 * _SIDE**3)
