"""Pages of the notebooks, each with what its cells showed when it was last executed."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from making import executed
from making.repository import REF, SLUG

PICTURE = re.compile(r"data:image/webp;base64,([A-Za-z0-9+/=]+)")
FOLDED = {"jupyter": {"source_hidden": True}}
"""The metadata of a cell whose code Jupyter folds away."""


def make(made: Path) -> None:
    """Write each notebook as a page, with buttons that open it elsewhere, and its pictures as files."""
    folder = made / "pages" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for path in executed.NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        kept = executed.stored(path)
        first = notebook["cells"][0]
        first["source"] = opening("".join(first["source"]), path, kept)
        for cell, outputs in zip(executed.code_cells(notebook), kept.get("outputs", []), strict=False):
            cell["outputs"] = [with_files(output, made / "static" / "notebooks") for output in outputs]
        for cell in notebook["cells"]:
            if FOLDED.items() <= cell["metadata"].items():
                cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        (folder / path.name).write_text(json.dumps(notebook), encoding="utf-8")


def opening(text: str, path: Path, kept: dict[str, Any]) -> str:
    """Return the first cell with buttons in place of its badges, and with where its outputs come from."""
    title, *rest = text.splitlines()
    promise = "\n".join(line for line in rest if "[download](" not in line).strip()
    buttons = " ".join(f"[{name}]({address}){{.launch}}" for name, address in places(path).items())
    return "\n\n".join([title, buttons, promise, f"{{.made}}\n{provenance(kept)}"])


def provenance(kept: dict[str, Any]) -> str:
    """Return a sentence on when, where and with what the outputs were made."""
    if not kept:
        return "This page shows the notebook without outputs: it has not been executed yet."
    minutes = max(1, round(kept["seconds"] / 60))
    taken = f"{minutes} minute{'s' * (minutes > 1)}"
    machine = kept["machine"] + ", busy with other work," * kept["busy"]
    commit = f"[{kept['commit']}](https://github.com/{SLUG}/commit/{kept['commit']})"
    return f"The outputs below are from {kept['day']}: {taken} on {machine} with commit {commit}."


def places(path: Path) -> dict[str, str]:
    """Return where a notebook can be opened, by name."""
    file = f"{SLUG}/blob/{REF}/notebooks/{path.name}"
    return {
        "Open in Colab": f"https://colab.research.google.com/github/{file}",
        "Open in Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
        "Open in molab": f"https://molab.marimo.io/github/{file}",
        "Download": f"https://github.com/{SLUG}/raw/{REF}/notebooks/{path.name}",
    }


def with_files(output: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an output whose pictures are files in `folder`, which a page loads when they come into view."""

    def as_file(picture: re.Match) -> str:
        content = base64.b64decode(picture[1])
        name = f"{hashlib.sha256(content).hexdigest()[:16]}.webp"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return f"../_static/notebooks/{name}"

    if html := output.get("data", {}).get("text/html"):
        return output | {"data": {"text/html": PICTURE.sub(as_file, html)}}
    return output
