"""How many samples a second a peer would compute here: measured for a second or two, or forecast where that is long."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import torch

from dalle_lib.amounts import count as number
from dalle_lib.checks.preflight import devices_here
from dalle_lib.machine import choose_device, name_of, names_of
from dalle_lib.memory import estimate
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.linear import linear
from dalle_lib.swarm.peer.computing.computer import Computer
from dalle_lib.swarm.peer.computing.trials import MAX_AT_ONCE, Trials, random_batch
from dalle_lib.swarm.peer.computing.way import Way
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.threads import threads_of

MEASURE_S = 1.0
"""Seconds for which gradients are computed after a trainer's trials, begun batches besides."""
MAX_SAMPLE_S = 1.0
"""Seconds of one sample on a processor beyond which nothing is tried, and the speed is forecast from operations."""
UTILISATION = (0.4, 0.75)
"""Operations a second of a training step as a share of those of a large matrix product, on a processor, the least and
the most that were measured: 0.42 and 0.52 (`python benchmarks/train_step.py`, machine B), 0.48 for `emoji-mini` and
0.69 for the paper's model (115 s a sample at 110 GFLOP/s; dev/DECISIONS.md, 2026-11-26)."""
SIDE, PRODUCTS = 1024, 4
"""Rows of the matrices that are multiplied to forecast, and how often: the fastest counts."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a peer with some settings would compute on this machine."""

    low: float
    """Samples a second, duty included: the lower end of what was measured or is forecast."""
    high: float
    where: str
    """What it computes on."""
    how: str
    """Where the figures come from, in words."""
    is_measured: bool


def speed_here(config: ModelConfig, settings: PeerSettings) -> Speed:
    """Return how fast a peer with these settings would train a model of `config` here.

    Some batches of random captions and codes go forward and backward, in the way that a trainer's trials choose, with
    random weights; nothing is downloaded. On a processor that takes longer than MAX_SAMPLE_S for one sample, only
    matrices are multiplied. Each of several devices is taken to be as fast as the first. Raises ValueError for a device
    that is not here, and NotEnoughRoom if not even one sample fits on a GPU.
    """
    devices = list(map(choose_device, devices_here(settings)))
    device, count, threads = devices[0], len(devices), threads_of(settings)
    if device.type == "cpu":
        threads = max(1, threads // devices.count(device))
    with _threads(threads):
        sample_s = _forecast_s(config) if device.type == "cpu" else None
        if sample_s is not None and min(sample_s) > MAX_SAMPLE_S:
            low, high = (1 / seconds for seconds in reversed(sample_s))
            how = "a forecast from the model's operations and the speed of a matrix product; nothing was trained"
        else:
            low, high, way = _measured(config, device, settings.batch_size or MAX_AT_ONCE)
            how = f"measured: {replace(way, samples_per_s=None).in_words(device.type)}"
    where = names_of(devices)
    if len(set(map(name_of, devices))) > 1:
        how += f", {name_of(device)} alone; the others are taken to be as fast"
    if device.type == "cpu":
        where += f", {number(threads, 'thread')}"
    scale = count * settings.duty
    return Speed(low=scale * low, high=scale * high, where=where, how=how, is_measured=how.startswith("measured"))


def flops_of_a_sample(config: ModelConfig) -> int:
    """Return the floating point operations of one sample, forward and backward, without any that are done twice."""
    return estimate({"model_type": "dalle", **asdict(config)}).flops


def _forecast_s(config: ModelConfig) -> tuple[float, float]:
    """Return the fewest and the most seconds that one sample may take on the processor."""
    left, right = torch.randn(2, SIDE, SIDE)
    with torch.no_grad():
        seconds = min(_timed(lambda: linear(left, right)) for _ in range(PRODUCTS))
    sample_s = flops_of_a_sample(config) / (2 * SIDE**3 / seconds)
    low, high = UTILISATION
    return sample_s / high, sample_s / low


def _measured(config: ModelConfig, device: torch.device, limit: int) -> tuple[float, float, Way]:
    """Return the mean and the highest samples a second of some steps, and the way that a trainer's trials choose."""
    computer = Computer(DALLE(config).to(device), device)
    way = Trials(computer, limit, trains_for_s=0.0).find()  # what has to be compiled first takes minutes
    batch, seconds = [random_batch(config, way.batch)], []
    while not seconds or sum(seconds) < MEASURE_S:
        seconds.append(_timed(lambda: computer.once(batch)))
    return len(seconds) * way.batch / sum(seconds), way.batch / min(seconds), way


def _timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute on `count` threads of the processor inside this block, as a peer does."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
