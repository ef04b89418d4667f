"""How far the calculator was off where it was held against measurements: `benchmarks/memory.py` writes them down."""

import json
from pathlib import Path

_TABLE = json.loads((Path(__file__).parent / "accuracy.json").read_text())

POINTS: list[dict] = _TABLE["points"]
"""model, training (what differs from the defaults), predicted, measured, saved: bytes of tensors at the peak."""
MACHINES: dict[str, str] = _TABLE["machines"]
"""The machine on which points were measured, by device: cpu or cuda."""
WORST = max(abs(point["predicted"] / point["measured"] - 1) for point in POINTS)
"""The largest error of a peak, as a share of what was measured."""
