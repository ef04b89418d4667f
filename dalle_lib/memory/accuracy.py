"""How far the calculator was off at each measured point; `benchmarks/memory.py` measures and writes the table."""

import json
from dataclasses import fields
from pathlib import Path

from dalle_lib.memory.training import Training

_TABLE = json.loads((Path(__file__).parent / "accuracy.json").read_text())

POINTS: list[dict] = _TABLE["points"]
"""Measured trainings: `model`, `training` (what differs from the defaults), `device`, and in bytes `predicted` and
`measured` (tensors at the peak), `saved` (kept for the backward pass) and `statistics` (the optimizer's)."""
MACHINES: dict[str, str] = _TABLE["machines"]
"""The machine on which the points of each device, `cpu` or `cuda`, were measured."""
WORST = max(abs(point["predicted"] / point["measured"] - 1) for point in POINTS)
"""The largest error of a predicted peak, as a share of the measured peak."""


def not_measured(training: Training, device: str) -> list[str]:
    """Return the options of `training` that no measured point on `device` has."""
    if device not in MACHINES:
        return [f"anything on {device}"] + ["swarms"] * training.swarm
    points = [point["training"] for point in POINTS if point["device"] == device]
    return [
        f"{field.name} {value}"
        for field in fields(Training)
        if field.name not in ("batch", "sequence")
        and (value := getattr(training, field.name)) != field.default
        and not any(point.get(field.name) == value for point in points)
    ]


def in_words() -> str:
    """Return some sentences on how far the calculator was off, and on which machines."""
    where = "; ".join(f"{device}: {machine}" for device, machine in MACHINES.items())
    on_gpu = "On one GPU most forecasts were 1 to 8% too low (benchmarks/README.md, On a GPU). "
    gpu = "" if "cuda" in MACHINES else on_gpu
    return (
        f"Over {len(POINTS)} measured peaks the calculator was off by {WORST:.1%} at most ({where}). {gpu}"
        f"The memory of CUDA itself and of its allocator is assumed."
    )
