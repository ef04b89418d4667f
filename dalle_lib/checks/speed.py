"""How many samples a second a peer would compute here: measured for a second or two, or forecast where that is long."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from dalle_lib.machine import choose_device, name_of, working_gpus
from dalle_lib.memory import estimate
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.linear import linear
from dalle_lib.swarm.process.settings import PeerSettings

MEASURE_S = 1.0
"""Seconds for which gradients are computed, begun batches besides."""
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

    Some batches of random captions and codes go forward and backward, as the trainer computes them, with random
    weights; nothing is downloaded. On a processor that takes longer than MAX_SAMPLE_S for one sample, only matrices are
    multiplied. Each of several GPUs is taken to be as fast as the first. Raises ValueError for a device that is not
    here, and torch.OutOfMemoryError if not even one sample fits on a GPU.
    """
    device = choose_device(None if settings.device == "auto" else settings.device)
    count = max(1, len(working_gpus())) if settings.device == "auto" else 1
    with _threads(settings.threads):
        sample_s = _forecast_s(config) if device.type == "cpu" else None
        if sample_s is not None and min(sample_s) > MAX_SAMPLE_S:
            low, high = (1 / seconds for seconds in reversed(sample_s))
            how = "a forecast from the model's operations and the speed of a matrix product; nothing was trained"
        else:
            batch = settings.batch_size
            if sample_s is not None:
                batch = max(1, min(batch, int(MEASURE_S / 3 / max(sample_s))))
            low, high, batch = _measured(config, device, batch)
            how = f"measured with batches of {batch} for {MEASURE_S:g} s"
    where = name_of(device) if count == 1 else f"{count} times {name_of(device)}"
    if device.type == "cpu":
        where += f", {settings.threads} thread{'' if settings.threads == 1 else 's'}"
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


def _measured(config: ModelConfig, device: torch.device, batch_size: int) -> tuple[float, float, int]:
    """Return the mean and the highest samples a second of some steps, and their batch, halved until it fits a GPU."""
    model = DALLE(config).to(device)
    while True:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what an earlier try has left
        text = torch.randint(1, config.text_vocab, (batch_size, config.text_length), device=device)
        codes = torch.randint(config.image_vocab, (batch_size, config.image_length), device=device)
        try:
            seconds = list(_steps(model, text, codes))
            return len(seconds) * batch_size / sum(seconds), batch_size / min(seconds), batch_size
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
            batch_size //= 2


def _steps(model: DALLE, text: Tensor, codes: Tensor) -> Iterator[float]:
    """Yield the seconds of each step for MEASURE_S, at least one; the first step of all is not counted."""
    _compute_gradient(model, text, codes)
    deadline, is_first = time.perf_counter() + MEASURE_S, True
    while is_first or time.perf_counter() < deadline:
        yield _timed(lambda: _compute_gradient(model, text, codes))
        is_first = False


def _compute_gradient(model: DALLE, text: Tensor, codes: Tensor) -> bool:
    """Compute the gradient of a batch as the trainer does, and return whether it is finite, which waits for a GPU."""
    model.zero_grad(set_to_none=False)
    model(text, codes).loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return bool(norm.isfinite())


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
