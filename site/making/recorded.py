"""What a monitor told of the recorded run in the package, for the charts in pages of prose."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from dalle_lib.monitor.published import HISTORY
from dalle_lib.replay import recorded_run
from drawings.charts import objective


def make(made: Path) -> None:
    """Play the recording; write what its charts show to `made/static/recorded/history.js`, and one of them drawn."""
    with TemporaryDirectory() as folder:
        history = json.loads((recorded_run(Path(folder)) / HISTORY).read_text(encoding="utf-8"))
    folder = made / "drawings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recorded.html").write_text(objective(history["epochs"]).figure("recorded"), encoding="utf-8")
    told = json.dumps({name: history[name] for name in ("epochs", "hours") if name in history}, separators=(",", ":"))
    file = made / "static" / "recorded" / "history.js"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"globalThis.dalle = globalThis.dalle || {{}};\ndalle.recorded = JSON.parse({json.dumps(told)});\n"
    file.write_text(text, encoding="utf-8")
