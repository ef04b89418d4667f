"""How long does a training step take, and how much memory, compared with the same function written the plain way?

Runs the forward and the backward pass of one batch in three ways, each in a process of its own: reversible layers, the
same layers with their activations kept, and benchmarks/plain.py. Prints JSON: the seconds of a reversible step
(figure), those of a plain one (reference) and their ratio, each the fastest of some steps. For each way it adds

- samples a second;
- the largest memory: tensors without the weights, by PyTorch's count, and on a processor RSS above that of the process
  with the built model;
- the time as a multiple of what PyTorch's matrix products would take for the step's FLOPs. These are those of forward
  and backward pass, with products that a mask hides, and without what is recomputed;
- model FLOPs utilisation, the inverse, against the faster of PyTorch's and the kit's products. Both are measured
  between the steps.

It ends with the largest bytes of tensors at other depths. On one thread of a processor, seconds are processor time,
which leaves out other programs.

With --all it times every combination of threads, precision, compilation and layers instead, by the clock, and says
which was the fastest here (figure, in samples a second) beside the way that needs no choice: float32, one thread, not
compiled, the layers as the model has them (reference). Each combination is a process of its own, in each pass.
"""

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import psutil
import torch
import tyro
from memory import describe_machine
from plain import PRESETS, Plain
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.measurement.worker import cpu_peak
from dalle_lib.memory import Training, estimate
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.model.linear import linear

WAYS = "reversible", "activations kept", "plain"
SIDE = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model, and where and how it runs."""

    preset: Literal["yardstick", "paper", "emoji"] = "yardstick"
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Training uses autocast; drawing keeps the weights, and what is remembered, in this precision."""
    threads: int = 1
    """Threads on a processor."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch's type."""
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[self.precision]


@dataclass(frozen=True, kw_only=True)
class Benchmark(Setting):
    """What to time."""

    batch: int = 1
    repeats: int = 7
    compiled: bool = False
    """Compile each layer; the plain way is never compiled."""
    depths: tuple[int, ...] = (8, 16, 32, 64)
    all: bool = False
    """Time all combinations of threads, precision, compilation and layers."""
    passes: int = 3
    """Passes over all combinations, of which each one's fastest step counts: other programs come and go."""


def main(benchmark: Benchmark) -> None:
    """Measure each way in turn, and print the comparison."""
    config = PRESETS[benchmark.preset]
    if benchmark.all:
        print(json.dumps(best_of_all(benchmark) | {"machine": describe_machine(benchmark.device)}, indent=1))
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        ways = {way: pool.submit(measure, benchmark, way).result() for way in WAYS}
        depths = {
            depth: pool.submit(tensor_bytes, benchmark, replace(config, depth=depth), "reversible").result()
            for depth in benchmark.depths
        }
    result = compare(ways["reversible"]["seconds"], ways["plain"]["seconds"])
    result |= {"ways": ways, "bytes of tensors at depth": depths, "settings": asdict(benchmark)}
    print(json.dumps(result | {"machine": describe_machine(benchmark.device)}, indent=1))


def best_of_all(benchmark: Benchmark) -> dict:
    """Return the samples a second of each combination, the fastest, and what it is compared with."""
    found, problems = {}, {}
    each = [(setting, way) for setting in combinations(benchmark) for way in WAYS[:2]]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for setting, way in benchmark.passes * each:
            name = f"{name_of(setting)}, {way}"
            try:
                rate = benchmark.batch / pool.submit(seconds_of, setting, way).result()
            except Exception as error:  # no compiler, or too little memory
                problems[name] = str(error).splitlines()[0][:200]
            else:
                found[name] = max(rate, found.get(name, rate))
    best, kept = max(found, key=found.__getitem__), PRESETS[benchmark.preset].depth <= 8
    plain = f"{name_of(replace(benchmark, threads=1, precision='fp32', compiled=False))}, {WAYS[kept]}"
    return {
        "figure": found[best], "reference": found[plain], "ratio": found[best] / found[plain], "best": best,
        "samples/s": found, "problems": problems, "settings": asdict(benchmark),
    }  # fmt: skip


def combinations(benchmark: Benchmark) -> Iterator[Benchmark]:
    """Yield the settings that are compared; on a GPU the threads of the processor matter little."""
    is_gpu, cores = benchmark.device == "cuda", psutil.cpu_count(logical=False) or 1
    threads = [1] if is_gpu else [1 << power for power in range(cores.bit_length())]
    precisions = ("fp32", "fp16", "bf16") if is_gpu else ("fp32", "bf16")
    for number, precision, compiled in product(threads, precisions, (False, True)):
        yield replace(benchmark, threads=number, precision=precision, compiled=compiled)


def name_of(setting: Benchmark) -> str:
    """Return a combination in words."""
    threads = "1 thread" if setting.threads == 1 else f"{setting.threads} threads"
    return f"{threads}, {setting.precision}, {'compiled' if setting.compiled else 'not compiled'}"


def seconds_of(benchmark: Benchmark, way: str) -> float:
    """Return the seconds of the fastest step by the clock, after one that compiles."""
    torch.set_num_threads(benchmark.threads)
    step = prepare(benchmark, PRESETS[benchmark.preset], way)
    step()
    seconds = []
    for _ in range(benchmark.repeats):
        wait_for(benchmark.device)
        started = time.perf_counter()
        step()
        wait_for(benchmark.device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def wait_for(device: str) -> None:
    """Return when a GPU has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def compare(figure: float, reference: float) -> dict[str, float]:
    """Return a figure, its reference and their ratio; the figure is better if it is smaller, the ratio if larger."""
    return {"figure": figure, "reference": reference, "ratio": reference / figure}


def measure(benchmark: Benchmark, way: str) -> dict[str, float]:
    """Return the time and memory of one way."""
    torch.set_num_threads(benchmark.threads)
    config = PRESETS[benchmark.preset]
    step = prepare(benchmark, config, way)
    rates = [matmul_rates(benchmark)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    seconds = []
    for _ in range(benchmark.repeats):
        seconds.append(timed(step, benchmark.device))
        rates.append(matmul_rates(benchmark))
    above = {}
    if benchmark.device == "cpu":
        above["bytes of RSS above"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    flops = estimate({"model_type": "dalle", **asdict(config)}, Training(batch=benchmark.batch)).flops
    fastest, (pytorch, kit) = min(seconds), map(max, zip(*rates, strict=True))
    return {
        "seconds": fastest,
        "samples/s": benchmark.batch / fastest,
        "GFLOP/s of a matrix product": pytorch / 1e9,
        "GFLOP/s of the kit's": kit / 1e9,
        "times as long as its FLOPs": fastest * pytorch / flops,
        "model FLOPs utilisation": flops / (fastest * max(pytorch, kit)),
        "bytes of tensors": tensor_bytes(benchmark, config, way),
        **above,
    }


def prepare(benchmark: Benchmark, config: ModelConfig, way: str) -> Callable[[], None]:
    """Return a step: forward and backward pass, after which the gradients are dropped."""
    torch.manual_seed(0)
    model = DALLE(config).to(benchmark.device)
    model.transformer.is_reversible = way == "reversible"
    if benchmark.compiled:
        model.transformer.compile_layers()
    text = torch.randint(1, config.text_vocab, (benchmark.batch, config.text_length), device=benchmark.device)
    codes = torch.randint(config.image_vocab, (benchmark.batch, config.image_length), device=benchmark.device)
    loss: Callable[[Tensor, Tensor], Tensor] = (
        Plain(model).loss if way == "plain" else lambda *batch: model(*batch).loss
    )

    def step() -> None:
        with torch.autocast(benchmark.device, benchmark.dtype, enabled=benchmark.precision != "fp32"):
            value = loss(text, codes)
        value.backward()
        model.zero_grad()

    return step


def tensor_bytes(benchmark: Benchmark, config: ModelConfig, way: str) -> int:
    """Return the largest number of bytes in tensors at any moment of a step, weights left out."""
    step = prepare(benchmark, config, way)
    if benchmark.device == "cuda":
        step()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with tempfile.TemporaryDirectory() as folder:
        return cpu_peak(step, Path(folder))


def timed(work: Callable[[], object], device: str) -> float:
    """Return the seconds that `work` takes: processor time if there is one thread, else by the clock."""
    if device == "cuda":
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - started
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    work()
    return clock() - started


def matmul_rates(setting: Setting) -> tuple[float, float]:
    """Return the FLOP a second of a large matrix product, by PyTorch and by the kit."""
    side = SIDE[setting.device]
    factors = torch.randn(2, side, side, device=setting.device, dtype=setting.dtype)
    return tuple(
        2 * side**3 / min(timed(partial(multiply, *factors), setting.device) for _ in range(6))
        for multiply in (F.linear, linear)
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
