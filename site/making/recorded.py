"""What a monitor told of the recorded run in the package, for the dashboard and the charts in pages of prose."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from drawings.charts import objective

from dalle_lib.dashboard.run_page import write_run_data
from dalle_lib.monitor.published import HISTORY
from dalle_lib.replay import recorded_run
from dalle_lib.run.newest import STATUS


def make(made: Path) -> None:
    """Play the recording; write what a dashboard shows of it to `made/static/recorded`, and one of its charts drawn."""
    with TemporaryDirectory() as folder:
        told = recorded_run(Path(folder))
        write_run_data(told, made / "static" / "recorded", "_static/recorded/")
        status, history = (json.loads((told / name).read_text(encoding="utf-8")) for name in (STATUS, HISTORY))
    (made / "recorded.md").write_text(in_words(status, history), encoding="utf-8")
    folder = made / "drawings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recorded.html").write_text(objective(history["epochs"]).figure("recorded"), encoding="utf-8")


def in_words(status: dict, history: dict) -> str:
    """Return a paragraph that says what was recorded."""
    ended, totals = history["epochs"]["ended"], status["totals"]
    minutes = round((max(ended) - min(ended)) / 60)
    return (
        f"Here {totals['peers']} peers trained the small model together, on one machine, for {minutes} minutes. Some "
        "came later, left, came back, or were killed. This is what the run's monitor told; the "
        "[dashboard](dashboard.md) shows all of it, of any run.\n"
    )
