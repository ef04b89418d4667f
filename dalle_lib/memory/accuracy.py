"""How far the calculator was off where it was held against measurements: `benchmarks/memory.py` writes them down."""

import json
from dataclasses import fields
from pathlib import Path

from dalle_lib.memory.training import Training

_TABLE = json.loads((Path(__file__).parent / "accuracy.json").read_text())

POINTS: list[dict] = _TABLE["points"]
"""model, training (what differs from the defaults), predicted, measured, saved: bytes of tensors at the peak."""
MACHINES: dict[str, str] = _TABLE["machines"]
"""The machine on which points were measured, by device: cpu or cuda."""
WORST = max(abs(point["predicted"] / point["measured"] - 1) for point in POINTS)
"""The largest error of a peak, as a share of what was measured."""


def not_measured(training: Training, device: str) -> list[str]:
    """Return which options of `training` no measured point on `device` has."""
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
    """Return how far the calculator was off, for a person."""
    where = "; ".join(f"{device}: {machine}" for device, machine in MACHINES.items())
    gpu = "" if "cuda" in MACHINES else "On a GPU nothing has been measured yet. "
    return (
        f"{gpu}Held against {len(POINTS)} measured peaks, it was off by {WORST:.1%} at most ({where}). "
        f"What CUDA and its allocator take besides is assumed."
    )
