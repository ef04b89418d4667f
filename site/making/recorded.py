"""What a monitor told of the recorded run in the package, for the dashboard and the chart of the landing page."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from drawings.charts import objective

from dalle_lib.dashboard.run_charts import chart_specs
from dalle_lib.dashboard.run_page import ASSETS, write_run_data
from dalle_lib.monitor.published import HISTORY
from dalle_lib.replay import recorded_run
from dalle_lib.run.newest import STATUS

NEEDED = ("text.js", "reading.js", "tables.js", "plots.js")
"""Scripts of the dashboard by which a chart is drawn."""
CHART = "objective"


def make(made: Path) -> None:
    """Play the recording; write what the dashboard shows of it, a chart drawn and as a script, and what it is."""
    with TemporaryDirectory() as folder:
        told = recorded_run(Path(folder))
        write_run_data(told, made / "static" / "recorded", "_static/recorded/")
        status, history = (json.loads((told / name).read_text(encoding="utf-8")) for name in (STATUS, HISTORY))
    (made / "recorded.md").write_text(in_words(status, history), encoding="utf-8")
    (made / "drawings").mkdir(parents=True, exist_ok=True)
    drawn = objective(history["epochs"]).figure("recorded")
    (made / "drawings" / "recorded.html").write_text(drawn, encoding="utf-8")
    (made / "static" / "dashboard").mkdir(parents=True, exist_ok=True)
    (made / "static" / "dashboard" / "recorded.js").write_text(script(history), encoding="utf-8")


def script(history: dict) -> str:
    """Return all that draws the chart, as one script: one request in place of seven."""
    values = {"recorded": {"epochs": history["epochs"]}, "charts": {CHART: chart_specs()[CHART]}}
    data = "".join(f"dalle.{name} = JSON.parse({json.dumps(json.dumps(value))});\n" for name, value in values.items())
    files = [*(ASSETS / name for name in NEEDED), Path(__file__).with_name("chart.js")]
    return "\n".join(
        ["globalThis.dalle = globalThis.dalle || {};", data, *(file.read_text(encoding="utf-8") for file in files)]
    )


def in_words(status: dict, history: dict) -> str:
    """Return a paragraph that says what was recorded."""
    ended, totals = history["epochs"]["ended"], status["totals"]
    minutes = round((max(ended) - min(ended)) / 60)
    return (
        f"Here {totals['peers']} peers trained the small model together, on one machine, for {minutes} minutes. Some "
        "came later, left, came back, or were killed. This is what the run's monitor told; the "
        "[dashboard](dashboard.md) shows all of it, of any run.\n"
    )
