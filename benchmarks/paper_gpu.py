"""What does the paper's model take on a GPU: to train, to draw, and to be updated?

Runs these parts, each in a process of its own, and each writes its results to a file of its name after each of them, so
that an error or the end of the time loses only what is still missing. Nothing is timed while other parts run, but for
those that only count bytes or check results, which run side by side.

- train: samples a second, memory and utilisation of a forward and backward pass in bf16, fp16 (with a loss scale),
  float32 with TF32 and without; reversible and with activations kept; a large batch and one sample; and the same
  recorded as a CUDA graph. A median of up to seven steps after two to warm up.
- sample: 128 pictures at once by the kit, recorded as a CUDA graph, and by benchmarks/plain.py; memory against
  `cache_bytes`.
- memory, checks: the calculator's points (benchmarks/memory.py), and what must be the same as on a processor.
- compiled: the steps of train with compiled layers.
- lamb: steps of LAMB8bit on the GPU, and on the processor for a model that is on the GPU.
- tutorial: GPT-2 Large with random weights, as notebook 03 trains it.

Prints JSON: samples a second of the fastest way to train (figure), those that a volunteer's GPU is assumed to manage
(reference) and their ratio; and the constants of the kit's forecasts beside what was found.
`python benchmarks/paper_gpu.py --tiny` tries all of this with a tiny model, on a processor too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import gpu_calculator
import gpu_checks
import gpu_drawing
import gpu_train
import torch
import tyro
from gpu_part import Part
from memory import describe_machine

from dalle_lib.memory import GPUS
from dalle_lib.memory.hardware import RECOMPUTED_SLACK, SLACK, gpu_of
from dalle_lib.model import ModelConfig
from dalle_lib.organizing.sizing import samples_per_second
from dalle_lib.planning.constants import GPU_OPERATIONS_PER_S, STEP_PARAMETERS_PER_S

WARM = {f"warm-{precision}": partial(gpu_train.warm, precision=precision) for precision in gpu_train.PRECISIONS[:3]}
PARTS = {
    "train": gpu_train.train, "sample": gpu_drawing.sample, "memory": gpu_calculator.memory,
    "checks": gpu_checks.checks, **WARM, "compiled": gpu_train.compiled, "lamb": gpu_checks.lamb,
    "tutorial": gpu_calculator.tutorial,
}  # fmt: skip
SIDE_BY_SIDE = "memory", "checks", *WARM
"""Parts in which nothing is timed."""
TURNS = (
    (("train",), 85), (("sample",), 85), (SIDE_BY_SIDE, 95), (("compiled",), 65), (("lamb",), 20),
    (("tutorial",), 120),
)  # fmt: skip
"""Parts that run at the same time, one turn after the other, and the seconds that each turn has at most."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to measure, and for how long."""

    out: Path = Path("outputs/paper_gpu")
    """Folder for a file of each part."""
    seconds: float = 400.0
    """Seconds for all parts together; what does not fit is left out, and said so."""
    tiny: bool = False
    """Use a tiny model, to try the script."""
    part: Literal["all", "report", *PARTS] = "all"  # type: ignore[valid-type]
    """Run one part alone, in this process; report only reads the files of earlier runs."""


def main(benchmark: Benchmark) -> None:
    """Run the parts, and print the comparison."""
    benchmark.out.mkdir(parents=True, exist_ok=True)
    if benchmark.part in PARTS:
        file = benchmark.out / f"{benchmark.part}.json"
        PARTS[benchmark.part](Part(file, benchmark.seconds, benchmark.tiny))
        return
    spent = run_all(benchmark) if benchmark.part == "all" else {}
    print(json.dumps(report(benchmark.out) | {"seconds of each part": spent}, indent=1))


def run_all(benchmark: Benchmark) -> dict[str, float]:
    """Run all turns until the time is over, and return the seconds of each part that ended by itself."""
    end, spent = time.monotonic() + benchmark.seconds, {}
    for names, at_most_s in TURNS:
        seconds = min(at_most_s, end - time.monotonic() - 2)
        if seconds < 10:
            print(f"left out, as the time is over: {', '.join(names)}", flush=True)
            continue
        started = time.monotonic()
        running = {name: start(benchmark, name, seconds) for name in names}
        while running and time.monotonic() < started + seconds:
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status = running.pop(name).returncode
                spent[name] = round(time.monotonic() - started, 1)
                print(f"== {name} ended after {spent[name]} s with status {status}", flush=True)
            time.sleep(0.1)
        for name, process in running.items():
            print(f"== {name} was stopped after {seconds:.0f} s", flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return spent


def start(benchmark: Benchmark, name: str, seconds: float) -> subprocess.Popen:
    """Start a part, on few cores if others run beside it; what `warm` writes is for nobody to read."""
    out = Path(tempfile.gettempdir()) / "paper_gpu_warm" if name in WARM else benchmark.out
    command = [sys.executable, __file__, "--part", name, "--out", str(out), "--seconds", str(seconds - 4)]
    command += ["--tiny"] * benchmark.tiny
    few = {"TORCHINDUCTOR_COMPILE_THREADS": "3", "OMP_NUM_THREADS": "2"} if name in SIDE_BY_SIDE else {}
    return subprocess.Popen(command, start_new_session=True, env=os.environ | few)


def report(folder: Path) -> dict:
    """Return the comparison from the files of the parts."""
    parts = {name: json.loads(file.read_text()) for name in PARTS if (file := folder / f"{name}.json").exists()}
    steps = {
        f"{name}: {way}": found
        for name in ("train", "compiled")
        for way, found in parts.get(name, {}).items()
        if isinstance(found, dict) and "samples/s" in found
    }
    best = max(steps, key=lambda way: steps[way]["samples/s"], default=None)
    figure, reference = steps[best]["samples/s"] if best else 0.0, samples_per_second(ModelConfig.paper())[0]
    return {
        "figure": figure, "reference": reference, "ratio": figure / reference, "fastest": best,
        "samples/s": {way: round(found["samples/s"], 2) for way, found in steps.items()},
        "constants": constants(parts, steps, figure / reference),
        "errors": errors(parts),
        "machine": describe_machine("cuda" if torch.cuda.is_available() else "cpu"),
    }  # fmt: skip


def constants(parts: dict, steps: dict, ratio: float) -> dict:
    """Return the constants of the kit's forecasts: what they say, and what was found."""
    train, sample, lamb = (parts.get(name, {}) for name in ("train", "sample", "lamb"))
    gpu = gpu_of(describe_machine("cuda").split(",")[0]) if torch.cuda.is_available() else None
    gpu = gpu or GPUS["H100"]
    slack = {way: found["slack"] for way, found in steps.items() if "slack" in found}
    forecasts = [found["error of the forecast"] for found in steps.values() if "error of the forecast" in found]
    return {
        "planning: GPU_OPERATIONS_PER_S": {"said": GPU_OPERATIONS_PER_S, "found": GPU_OPERATIONS_PER_S * ratio},
        "planning: STEP_PARAMETERS_PER_S": {
            "said": STEP_PARAMETERS_PER_S, "found": {way: found.get("parameters/s") for way, found in lamb.items()},
        },
        "hardware: context": {"said": gpu.context, "found": train.get("memory without tensors", {}).get("bytes")},
        "hardware: SLACK": {"said": {"kept": SLACK, "reversible": RECOMPUTED_SLACK}, "found": slack},
        "hardware: gib": {
            "said": gpu.gib, "found": train.get("memory without tensors", {}).get("GiB that torch reports"),
        },
        "hardware: teraflops": {
            "said": gpu.teraflops, "found": train.get("operations a second of a matrix product"),
        },
        "calculator: peaks of training steps": {"errors": [min(forecasts), max(forecasts)] if forecasts else None},
        "calculator: its points": parts.get("memory", {}).get("comparison"),
        "cache_bytes: memory of drawing": {
            key: sample.get("many", {}).get(key) for key in ("forecast", "allocated", "error of the forecast")
        },
    }  # fmt: skip


def errors(parts: dict) -> dict[str, str]:
    """Return what failed or was left out, by part and name."""
    return {
        f"{name}: {what}": found.get("error") or found["left out"]
        for name, part in parts.items()
        for what, found in part.items()
        if isinstance(found, dict) and (found.get("error") or "left out" in found)
    }


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
