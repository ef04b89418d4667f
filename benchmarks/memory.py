"""How far is the memory calculator off?

The script trains real models for a few steps, each in a process of its own, and compares the bytes of tensors at the
peak with `dalle_lib.memory.estimate`. On a GPU the bytes are CUDA's own count; on a CPU the profiler records what the
allocator hands out. No constant of the calculator comes from these points.

It writes the table that the calculator shows, and docs/memory/accuracy.md. It prints JSON: the largest error (figure),
5% (reference), and their ratio.
"""

import json
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from dalle_lib.measurement import measure
from dalle_lib.memory import Training, estimate

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "dalle_lib" / "memory" / "accuracy.json"
PAGE = ROOT / "docs" / "memory" / "accuracy.md"

GPTJ = {"model_type": "gptj", "n_embd": 512, "n_layer": 8, "n_head": 8, "rotary_dim": 32}
LLAMA = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}  # fmt: skip
DALLE = {"model_type": "dalle", "dim": 256, "depth": 16, "heads": 4, "dim_head": 64}

POINTS = [
    ("bert-base", {"batch": 4, "sequence": 128}),
    ("bert-base", {"batch": 1, "sequence": 512, "attention": "eager", "optimizer": "adamw8bit"}),
    ("bert-base", {"batch": 2, "sequence": 128, "precision": "bf16"}),
    ("bert-base", {"batch": 2, "sequence": 256, "checkpointing": True}),
    ("bert-base", {"batch": 2, "sequence": 128, "dropout": True}),
    ("t5-small", {"batch": 4, "sequence": 128}),
    ("t5-small", {"batch": 2, "sequence": 256, "checkpointing": True, "optimizer": "adafactor"}),
    ("t5-small", {"batch": 2, "sequence": 128, "precision": "bf16"}),
    ("t5-base", {"batch": 2, "sequence": 64, "precision": "pure-bf16"}),
    ("gpt2", {"batch": 1, "sequence": 512}),
    ("gpt2", {"batch": 1, "sequence": 1024, "checkpointing": True, "optimizer": "lamb8bit"}),
    ("gpt2", {"batch": 2, "sequence": 256, "attention": "eager"}),
    ("gpt2", {"batch": 4, "sequence": 64, "optimizer": "adamw8bit"}),
    ("gpt2", {"batch": 2, "sequence": 64, "optimizer": "adamw8bit", "embeddings_32bit": False, "checkpointing": True}),
    ("gpt2", {"batch": 2, "sequence": 128, "precision": "bf16"}),
    ("gpt2", {"batch": 2, "sequence": 128, "precision": "bf16", "checkpointing": True}),
    ("gpt2", {"batch": 1, "sequence": 128, "precision": "pure-bf16"}),
    ("gpt2", {"batch": 2, "sequence": 128, "offload": "optimizer"}),
    ("gpt2", {"batch": 2, "sequence": 128, "offload": "statistics", "checkpointing": True}),
    ("gpt2", {"batch": 2, "sequence": 128, "accumulates": True}),
    ("gpt2-medium", {"batch": 1, "sequence": 256}),
    ("gpt2-large", {"batch": 1, "sequence": 256, "checkpointing": True}),
    (GPTJ, {"batch": 2, "sequence": 256}),
    (GPTJ, {"batch": 2, "sequence": 128, "precision": "bf16", "checkpointing": True}),
    (LLAMA, {"batch": 1, "sequence": 256}),
    (LLAMA, {"batch": 2, "sequence": 128, "attention": "eager", "precision": "bf16"}),
    ("dalle-emoji", {"batch": 16, "optimizer": "lamb8bit"}),
    ("dalle-emoji", {"batch": 16, "optimizer": "lamb8bit", "precision": "bf16", "reversible": True}),
    (DALLE, {"batch": 1, "optimizer": "lamb8bit", "reversible": True}),
    (DALLE, {"batch": 1, "optimizer": "lamb"}),
]  # fmt: skip

TUTORIAL = {"sequence": 1024, "attention": "sdpa"}
TUTORIAL_POINTS = [
    ("gpt2-large", {"batch": 4, "optimizer": "adamw8bit", "checkpointing": True, "precision": "bf16", **TUTORIAL}),
    ("gpt2-large", {"batch": 4, "checkpointing": True, "precision": "bf16", **TUTORIAL}),
    ("gpt2-large", TUTORIAL),
    ("gpt2-large", {"optimizer": "adamw8bit", **TUTORIAL}),
    ("gpt2-large", {"optimizer": "adamw8bit", "precision": "bf16", **TUTORIAL}),
    ("gpt2-large", {"optimizer": "adamw8bit", "checkpointing": True, **TUTORIAL}),
    ("gpt2-large", {"optimizer": "adamw8bit", "precision": "bf16", "offload": "statistics", **TUTORIAL}),
]
"""GPT-2 Large as notebook 03 trains it."""
PAPER = {"optimizer": "lamb8bit", "reversible": True}
GPU_POINTS = [
    ("bert-base", {"batch": 8, "sequence": 512, "precision": "fp16"}),
    ("gpt2", {"batch": 2, "sequence": 512, "precision": "fp16", "checkpointing": True}),
    ("gpt2", {"batch": 2, "sequence": 256, "optimizer": "adamw8bit", "offload": "statistics"}),
    ("gpt2-medium", {"batch": 4, "sequence": 512, "precision": "fp16", "optimizer": "adamw8bit"}),
    ("dalle-paper", {"batch": 1, **PAPER}),
    ("dalle-paper", {"batch": 8, "precision": "fp16", **PAPER}),
    ("dalle-paper", {"batch": 32, "precision": "bf16", **PAPER}),
    ("dalle-paper", {"batch": 4, "precision": "bf16", "offload": "optimizer", **PAPER}),
    ("dalle-paper", {"batch": 1, "precision": "fp16", "optimizer": "lamb8bit"}),
    *TUTORIAL_POINTS,
]
"""Points that are measured on a GPU only: the large models are slow without, and fp16 and paged statistics need one."""

_ABOUT = """
On a GPU the peak is `torch.cuda.max_memory_allocated`. It counts the workspaces of CUDA's libraries, as the forecast
does, and by how much PyTorch's allocator rounds tensors up, to blocks that it has already and that may be 1 MiB larger:
that depends on its past and is not forecast. Of the bytes that were asked for, the forecasts are off by at most
{requested}. What CUDA itself takes and what the allocator holds beyond tensors are ranges of their own
([benchmarks/README.md](../../benchmarks/README.md#on-a-gpu)). Reversible layers and shared weights are measured only in
this kit's model. tests/test_measurement.py compares what PyTorch keeps on a GPU in eager attention with PyTorch's own
bookkeeping of fake CUDA tensors, which hold no numbers.
"""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Which points to measure, and on which device."""

    word: str = ""
    """Measure only points that contain this word, such as the name of a model or of an optimizer; the rest of the table
    stays as it is."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cuda or cpu."""
    workers: int = 1
    """Points that are measured at the same time. On a GPU several fit, and each counts its own bytes."""


def main(benchmark: Benchmark) -> None:
    """Measure the points, write both tables, and print the comparison."""
    points = []
    for point, problem in measured(benchmark):
        print(json.dumps(point), problem or f"{point['predicted'] / point['measured'] - 1:+.2%}", flush=True)
        points.append(point)
    machine = describe_machine(benchmark.device)
    write(points, benchmark.device, machine)
    print(json.dumps(compare(points) | {"machine": machine}, indent=1))


def measured(benchmark: Benchmark) -> Iterator[tuple[dict, str]]:
    """Return an iterator over the points, as they are measured, each with why it could not be measured, or with ""."""
    points = GPU_POINTS * (benchmark.device == "cuda") + POINTS
    chosen = [point for point in points if benchmark.word in json.dumps(point)]
    with ThreadPoolExecutor(benchmark.workers) as pool:
        jobs = [pool.submit(measure_point, *point, benchmark.device) for point in chosen]
        try:
            for job in as_completed(jobs):
                yield job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def measure_point(model: str | dict, options: dict, device: str) -> tuple[dict, str]:
    """Return a point, and why it could not be measured, or an empty text."""
    point = {"model": model, "training": options, "device": device, "predicted": None, "measured": None}
    try:
        result = measure(model, Training(**options), steps=1, device=device)
    except RuntimeError as error:  # the other points are measured all the same
        return point, str(error)
    point |= {"predicted": result.predicted, "measured": result.peak}
    return point | {"saved": result.saved, "statistics": result.statistics}, result.error


def compare(points: list[dict]) -> dict[str, float]:
    """Return the largest error of a predicted peak, what it should stay below, and their ratio."""
    worst = max(abs(point["predicted"] / point["measured"] - 1) for point in points if point["measured"])
    return {"figure": worst, "reference": 0.05, "ratio": worst / 0.05}


def write(points: list[dict], device: str, machine: str) -> None:
    """Write the table and its page, with new points in place of their old versions, in the order of `POINTS`."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {"machines": {}, "points": []}
    table["machines"][device] = machine
    known = {_name(point): point for point in [*table["points"], *points] if point["measured"]}
    order = [json.dumps(point) for point in POINTS + GPU_POINTS]
    table["points"] = sorted(known.values(), key=lambda point: (point["device"], order.index(_name(point)[1])))
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(table))


def _name(point: dict) -> tuple[str, str]:
    return point["device"], json.dumps([point["model"], point["training"]])


def page(table: dict) -> str:
    """Return the table as a page in Markdown."""
    lines = [
        "# The memory calculator, compared with measurements\n",
        "Bytes of tensors at the peak of a training step, measured by `python benchmarks/memory.py`, and on a GPU by",
        "`python benchmarks/gpu_memory.py`:",
        *(f"- {device}: {machine}" for device, machine in table["machines"].items()),
        _ABOUT.format(requested=_percent(worst_of_requested(table["points"]))),
        "*Kept* is what the forward pass keeps for the backward pass. The *peak* is the most that all tensors take.\n",
        "| | model | training | kept: predicted, MB | measured | error | peak: predicted, MB | measured | error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in table["points"]:
        model = point["model"] if isinstance(point["model"], str) else f"a small {point['model']['model_type']}"
        options = ", ".join(f"{name} {value}" for name, value in point["training"].items())
        kept = estimate(point["model"], Training(**point["training"]), point["device"]).saved
        pairs = ((kept, point["saved"]), (point["predicted"], point["measured"]))
        cells = [f"{said / 1e6:.1f} | {found / 1e6:.1f} | {_percent(said / found - 1)}" for said, found in pairs]
        lines.append(f"| {point['device']} | {model} | {options} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def worst_of_requested(points: list[dict]) -> float:
    """Return the largest error of a forecast on a GPU, as a share of what tensors asked for."""
    errors = [abs(point["predicted"] / point["requested"] - 1) for point in points if "requested" in point]
    return max(errors, default=0.0)


def _percent(error: float) -> str:
    """Return an error with one digit after the point, and without a sign if that digit and all before it are zero."""
    return f"{round(100 * error, 1) + 0:g}%"


def describe_machine(device: str) -> str:
    """Return the name of the device that was measured, and the versions of Python and torch."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, {versions}"
    names = [line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return f"{names[0] if names else platform.machine()}, {versions}"


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
