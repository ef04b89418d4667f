"""Write colab_badges.md from the notebooks and the repository's address in pyproject.toml."""

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BRANCH = "main"


def slug() -> str:
    """Return owner/name of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"].removeprefix("https://github.com/")


def title(notebook: Path) -> str:
    """Return the first heading of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")


def page() -> str:
    """Return the table of notebooks with their badges."""
    lines = [
        "<!-- Made by scripts/make_badges.py. -->",
        "# Notebooks",
        "",
        "The badges work once this repository is published.",
        "",
        "| notebook | Colab | Kaggle |",
        "| --- | --- | --- |",
    ]
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        path = f"{slug()}/blob/{BRANCH}/notebooks/{notebook.name}"
        colab = (
            "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
            f"(https://colab.research.google.com/github/{path})"
        )
        kaggle = (
            "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
            f"(https://kaggle.com/kernels/welcome?src=https://github.com/{path})"
        )
        lines.append(f"| [{title(notebook)}](notebooks/{notebook.name}) | {colab} | {kaggle} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "colab_badges.md").write_text(page(), encoding="utf-8")
