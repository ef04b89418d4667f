"""How far the calculator was off at each measured point; `benchmarks/memory.py` measures and writes the table."""

import json
from dataclasses import fields
from pathlib import Path

from dalle_lib.memory.training import Training

_TABLE = json.loads((Path(__file__).parent / "accuracy.json").read_text())

POINTS: list[dict] = _TABLE["points"]
"""Measured trainings: `model`, `training` (what differs from the defaults), `device`, and in bytes `predicted` and
`measured` (tensors and workspaces at the peak), `saved` (kept for the backward pass) and `statistics` (the
optimizer's). On a GPU, `requested` is `measured` before the allocator rounded each tensor up to a block."""
MACHINES: dict[str, str] = _TABLE["machines"]
"""The machine on which the points of each device, `cpu` and `cuda`, were measured."""
WORST: dict[str, float] = {
    device: max(abs(point["predicted"] / point["measured"] - 1) for point in POINTS if point["device"] == device)
    for device in MACHINES
}
"""The largest error of a predicted peak on each device, as a share of the measured peak."""


def not_measured(training: Training, device: str) -> list[str]:
    """Return the options of `training` that no measured point on `device` has."""
    points = [point["training"] for point in POINTS if point["device"] == device]
    return [
        field.name if isinstance(value, bool) and value else f"{field.name} {value}"
        for field in fields(Training)
        if field.name not in ("batch", "sequence")
        and (value := getattr(training, field.name)) != field.default
        and not any(point.get(field.name) == value for point in points)
    ]


def in_words() -> str:
    """Return some sentences on how far the calculator was off, and on which machines."""
    where = "; ".join(f"{device}, {machine}: {WORST[device]:.1%}" for device, machine in MACHINES.items())
    return (
        f"Over {len(POINTS)} measured peaks of tensors the calculator was off by at most: {where}. "
        f"The ranges of CUDA and of PyTorch's allocator are measured on an H100, and assumed of other GPUs."
    )
