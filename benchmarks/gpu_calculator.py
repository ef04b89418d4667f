"""The memory calculator and the tutorial's training on a GPU, for `paper_gpu.py`."""

from dataclasses import replace
from functools import partial

from gpu_part import Part
from memory import Benchmark, compare, describe_machine, measured

from dalle_lib.measurement import measure
from dalle_lib.memory import Training

WORKERS = 8
"""Points that are measured at the same time: together with `warm` they take some 60 GB."""
SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500}
ADAM, ADAM8 = "adamw", "adamw8bit"


def memory(part: Part) -> None:
    """Measure the calculator's points, several at once, and compare; points that no time is left for are left out.

    `python -c 'import json, memory; p = json.load(open("memory.json")); memory.write(p["points"], "cuda",
    p["machine"])'`, run in this folder, then writes the table that the calculator shows.
    """
    part.keep("machine", describe_machine(part.device))
    points, problems = [], []
    word = "dalle-emoji" if part.is_tiny else ""
    for point, problem in measured(Benchmark(word=word, device=part.device, workers=WORKERS)):
        (problems if problem else points).append(point | ({"problem": problem[-400:]} if problem else {}))
        part.keep("problems", problems)
        part.keep("points", points)
        if points:
            part.keep("comparison", compare(points))
        if part.left() < 0:
            break


def tutorial(part: Part) -> None:
    """Train GPT-2 Large with random weights as notebook 03 does, and measure its steps of one block, one by one."""
    length = 128 if part.is_tiny else 1024
    part.attempt("the preset that is chosen", chosen)
    adam = Training(sequence=length, attention="sdpa")
    adam8 = replace(adam, optimizer=ADAM8)
    short = replace(adam8, checkpointing=True)
    half = replace(short, precision="bf16")
    trainings = {
        "four blocks, 8-bit Adam, checkpointing, bf16": replace(half, batch=4),
        "four blocks, 32-bit Adam, checkpointing, bf16": replace(half, batch=4, optimizer=ADAM),
        "32-bit Adam": adam,
        "8-bit Adam": adam8,
        "+ bf16 autocast": half,
        "+ checkpointing": short,
        "+ offload": replace(half, offload="statistics"),
    }
    for name, training in trainings.items():
        part.attempt(name, partial(trained, part, training), needs_s=12)


def chosen() -> dict[str, str]:
    """Return what the notebook says before it trains."""
    from dalle_lib.tutorial import choose_preset

    return {"preset": choose_preset("auto").describe()}


def trained(part: Part, training: Training) -> dict:
    """Return what a training takes, by the tutorial's own measurement."""
    result = measure(SMALL if part.is_tiny else "gpt2-large", training, steps=3, device=part.device)
    names = "predicted", "peak", "weights", "statistics", "saved", "seconds", "losses", "error"
    found = {name: getattr(result, name) for name in names}
    return found | ({"error of the forecast": result.prediction_error} if result.fits else {})
