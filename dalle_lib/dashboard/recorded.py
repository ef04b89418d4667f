"""The last recorded run of notebook 03 with GPT-2 Large on a GPU: each run writes its figures, this one is kept."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pandas as pd
import torch
from IPython.display import HTML

from dalle_lib.dashboard.bars import bytes_text
from dalle_lib.dashboard.lessons import error_text
from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.dashboard.tables import sentence
from dalle_lib.measurement import Measurement
from dalle_lib.streaming import TEXT

RECORD = TEXT / "gpt2_large_run.json"
"""Where `make tutorial-gpu` keeps its run; the file is missing until there has been one."""


def write_record(file: str | Path, model: str, measurements: Mapping[str, Measurement], losses: Mapping) -> None:
    """Write the figures of a run to `file`: memory and speed of each measured training, and held-out losses.

    `losses` has the held-out loss by step; the first and the last are kept.
    """
    device = next(iter(measurements.values())).device
    record = {
        "model": model,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "bitsandbytes")},
        "losses": [losses[min(losses)], losses[max(losses)]],
        "trainings": {name: _figures(measured) for name, measured in measurements.items()},
    }
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def recorded_run(file: Path = RECORD) -> HTML:
    """Return the recorded run as a sentence and a table, or a sentence that says that there is none."""
    if not file.exists():
        return HTML(
            "<p>No run of GPT-2 Large on a GPU has been recorded yet: <code>make tutorial-gpu</code> in a clone of the "
            "kit, on a machine with a GPU of 16 GB or more, records one.</p>"
        )
    record = json.loads(file.read_text(encoding="utf-8"))
    before, after = record["losses"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    said = (
        f"Recorded on {record['date']}: {record['model']} on {record['device']} ({versions}). "
        f"Held-out loss: {before:.2f} before, {after:.2f} after."
    )
    table = pd.DataFrame(record["trainings"]).T.fillna("").to_html(border=0)
    return HTML(sentence(said).data + scrolling(table))


def _figures(measured: Measurement) -> dict[str, str]:
    if not measured.fits:
        return {"predicted": bytes_text(measured.predicted), "highest memory": measured.error}
    tokens = measured.training.batch * measured.training.sequence
    return {
        "predicted": bytes_text(measured.predicted),
        "highest memory": bytes_text(measured.peak),
        "error": error_text(measured),
        "text tokens a second": f"{tokens / measured.seconds:,.0f}",
    }
