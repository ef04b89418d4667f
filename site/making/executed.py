"""What the notebooks' cells showed when they were last executed, kept in `site/executed/`, a file for each notebook."""

import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from making.repository import ROOT

STORE = ROOT / "site" / "executed"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INSTALL = "SOURCE, REF, VERSION = "
"""Marks the cell that installs the kit: it changes with each release and shows nothing."""
EMBEDDED = re.compile(r"data:image/(?:png|jpeg);base64,([A-Za-z0-9+/=\n]+)")
SHOWN = ("text/html", "image/svg+xml", "image/png", "text/plain")
"""Kinds of output that a page can show, the best first; a widget needs a running notebook."""
WIDGET = "application/vnd.jupyter.widget-view+json"
MAX_BYTES = 1_000_000


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the code cells of a notebook that hold its own code."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in cells if INSTALL not in "".join(cell["source"])]


def fingerprint(notebook: dict[str, Any]) -> str:
    """Return a hash of a notebook's code, without the cell that installs the kit."""
    sources = ["".join(cell["source"]) for cell in code_cells(notebook)]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def stored(path: Path) -> dict[str, Any]:
    """Return what is kept of the notebook `path`, or nothing if it has never been executed."""
    file = STORE / f"{path.stem}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def stale() -> list[Path]:
    """Return the notebooks whose code is not the one that was executed."""
    current = {path: fingerprint(json.loads(path.read_text(encoding="utf-8"))) for path in NOTEBOOKS}
    return [path for path, code in current.items() if stored(path).get("code") != code]


def store(path: Path, notebook: dict[str, Any], about: dict[str, Any]) -> int:
    """Keep the outputs of an executed notebook, with what is `about` its execution, and return the file's bytes."""
    cells = [cell["outputs"] for cell in code_cells(notebook)]
    outputs = [[shown(output) for output in cell if not is_moving(output)] for cell in cells]
    text = json.dumps({"code": fingerprint(notebook)} | about | {"outputs": outputs}, indent=1, ensure_ascii=False)
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(
            f"expected at most {MAX_BYTES} bytes of outputs, but {path.name} shows {len(text.encode())}: "
            "let its cells show fewer or smaller pictures."
        )
    STORE.mkdir(exist_ok=True)
    return (STORE / f"{path.stem}.json").write_text(text + "\n", encoding="utf-8")


def is_moving(output: dict[str, Any]) -> bool:
    """Return whether an output is a widget alone, as a progress bar is, of which a page would show the first moment."""
    return output.get("data", {}).keys() == {WIDGET, "text/plain"}


def shown(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output as a page shows it: of several kinds the best, pictures as WebP, no counters."""
    if output["output_type"] == "stream":
        return {"output_type": "stream", "name": output["name"], "text": "".join(output["text"])}
    if output["output_type"] == "error":
        raise ValueError(f"expected a notebook that runs to its end, but a cell raised {output['ename']}.")
    kind = next(kind for kind in SHOWN if kind in output["data"])
    text = "".join(output["data"][kind])
    if kind == "image/png":
        kind, text = "text/html", f'<img src="data:image/png;base64,{text.strip()}" alt="">'
    smaller = EMBEDDED.sub(lambda picture: f"data:image/webp;base64,{as_webp(picture[1])}", text)
    return {"output_type": "display_data", "data": {kind: smaller}, "metadata": {}}


def as_webp(picture: str) -> str:
    """Return a picture in base64 as WebP in base64; small ones, whose every pixel counts, without loss."""
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        small = image.width * image.height < 40_000
        file = io.BytesIO()
        image.save(file, "WEBP", lossless=small, quality=85, method=6)
    return base64.b64encode(file.getvalue()).decode()
