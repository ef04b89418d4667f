"""Pages of the notebooks, each with what its cells showed when it was last executed."""

import json
from pathlib import Path

from making.repository import REF, ROOT, SLUG

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def make(made: Path) -> None:
    """Write each notebook as a page with buttons that open it elsewhere."""
    folder = made / "pages" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        first = notebook["cells"][0]
        first["source"] = with_buttons("".join(first["source"]), path)
        (folder / path.name).write_text(json.dumps(notebook), encoding="utf-8")


def with_buttons(text: str, path: Path) -> str:
    """Return the first cell with links in place of its badges, which are pictures from elsewhere."""
    title, *rest = text.splitlines()
    promise = "\n".join(line for line in rest if "[download](" not in line).strip()
    links = " ".join(f"[{name}]({address}){{.launch}}" for name, address in places(path).items())
    return f"{title}\n\n{links}\n\n{promise}"


def places(path: Path) -> dict[str, str]:
    """Return where a notebook can be opened, by name."""
    file = f"{SLUG}/blob/{REF}/notebooks/{path.name}"
    return {
        "Open in Colab": f"https://colab.research.google.com/github/{file}",
        "Open in Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
        "Open in molab": f"https://molab.marimo.io/github/{file}",
        "Download": f"https://github.com/{SLUG}/raw/{REF}/notebooks/{path.name}",
    }
