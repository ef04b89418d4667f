"""Write the repository's address, the kit's version, the install cell and the badges into the notebooks.

pyproject.toml holds the address and `dalle_lib.version` the version; everything else is made from these two.
Run `python scripts/publish.py` after a change to the version or to a notebook's first cells, and
`make slug SLUG=owner/name REF=v0.2.0` when the repository moves or a release is tagged: badges and install cells then
name the same commit. A release's tag is `v` followed by the version.
"""

import json
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import tyro

ROOT = Path(__file__).parent.parent
GPU_METADATA = {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
"""Asks Colab for a runtime with a T4."""
CPU_METADATA = {"colab": {"provenance": []}}
KERNEL_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

FORM = '{display-mode: "form"}'
"""Ends the title of a cell that Colab shows as a form, with its code folded away."""

INSTALL = """\
# @title Install: adds what is missing, replaces nothing {{display-mode: "form"}}
import os
import runpy
import sys
from importlib import metadata
from subprocess import run
from tempfile import TemporaryDirectory

SOURCE, REF, VERSION = "https://github.com/{slug}", "{ref}", "{version}"
if VERSION not in [package.version for package in metadata.distributions(name="dalle-lib")]:
    ask = [sys.executable, "-m", "pip", "index", "versions", "tyro", "--timeout=5", "--retries=1"]
    if (asked := run(ask, capture_output=True, text=True)).returncode:
        remedy = "on Kaggle, turn it on under Settings, Internet (needs a phone-verified account)"
        raise RuntimeError(f"no internet: {{remedy}}; pip could not ask its index:\\n{{asked.stderr}}")
    with TemporaryDirectory() as folder:
        clone = ["git", "clone", "--quiet", "--depth=1", "--branch", REF, SOURCE, folder]
        done = run(clone, env=os.environ | {{"GIT_TERMINAL_PROMPT": "0"}}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{{SOURCE}} ({{REF}}) is not published yet, or moved; git says:\\n{{done.stderr}}")
        runpy.run_path(f"{{folder}}/install.py", run_name="__main__")
"""
"""Asks pip, as this machine configures it, for a small package that the kit needs: a mirror or a proxy counts."""


@dataclass(frozen=True)
class Repository:
    """Where the kit is published."""

    slug: str
    """owner/name on GitHub."""
    ref: str
    """The branch or tag that badges open and install cells install."""

    @classmethod
    def read(cls) -> Self:
        """Return the repository that pyproject.toml names."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        slug = project["project"]["urls"]["Repository"].removeprefix("https://github.com/")
        return cls(slug, project["tool"]["dalle-lib"]["ref"])

    def rename(self, text: str, new: "Repository") -> str:
        """Return `text` with this address replaced by `new`'s, and the ref too in `slug@ref` and in links to files."""
        old_slug, old_ref = re.escape(self.slug), re.escape(self.ref)
        text = re.sub(rf"{old_slug}(@|/(?:blob|raw|tree)/){old_ref}(?![\w.-])", rf"{new.slug}\g<1>{new.ref}", text)
        return re.sub(rf"(?<=github\.com/){old_slug}(?![\w-])", new.slug, text)

    def badges(self, notebook: Path, peer_first: bool) -> list[str]:
        """Return the notebook's badges: Colab, Kaggle, download; Kaggle comes first where the notebook runs a peer."""
        path = f"{self.slug}/blob/{self.ref}/notebooks/{notebook.name}"
        colab = (
            "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
            f"(https://colab.research.google.com/github/{path})"
        )
        kaggle = (
            "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
            f"(https://kaggle.com/kernels/welcome?src=https://github.com/{path})"
        )
        download = f"[download](https://github.com/{self.slug}/raw/{self.ref}/notebooks/{notebook.name})"
        return [kaggle, colab, download] if peer_first else [colab, kaggle, download]

    def install_cell(self) -> list[str]:
        """Return the source of the cell that installs the kit, line by line."""
        return INSTALL.format(slug=self.slug, ref=self.ref, version=version()).rstrip("\n").splitlines(True)

    def notebook(self, path: Path) -> str:
        """Return a notebook with its badges, its install cells, and the metadata that Colab and Kaggle read."""
        notebook = json.loads(path.read_text(encoding="utf-8"))
        about = notebook["metadata"]["dalle_lib"]
        badges = self.badges(path, about["runs_peer"])
        title, *rest = "".join(notebook["cells"][0]["source"]).splitlines()
        promise = "\n".join(line for line in rest if "[download](" not in line).strip()
        notebook["cells"][0]["source"] = f"{title}\n\n{' '.join(badges)}\n\n{promise}".splitlines(True)
        (start,) = (n for n, cell in enumerate(notebook["cells"]) if "".join(cell["source"]).startswith("## Install"))
        notebook["cells"][start + 1]["source"] = self.install_cell()
        for cell in notebook["cells"]:
            fold(cell)
        uses_gpu = about["uses_gpu"]
        kaggle = {
            "accelerator": "nvidiaTeslaT4" if uses_gpu else "none",
            "isGpuEnabled": uses_gpu,
            "isInternetEnabled": True,
            "language": "python",
            "sourceType": "notebook",
        }
        platforms = (GPU_METADATA if uses_gpu else CPU_METADATA) | {"kaggle": kaggle}
        notebook["metadata"] = dict(sorted(({"dalle_lib": about} | platforms | KERNEL_METADATA).items()))
        return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"

    def table(self) -> str:
        """Return the page of all notebooks with their badges."""
        lines = [
            "<!-- Made by scripts/publish.py from the notebooks. -->",
            "# Notebooks",
            "",
            "The badges work once this repository is published. Times are of two cores of an AMD EPYC processor.",
            "",
            "| notebook | for | what | time | GPU | what leaves your machine | open |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for path in notebooks():
            metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]["dalle_lib"]
            cells = [metadata[name] for name in ("for", "what", "time", "gpu", "leaves")]
            badges = " ".join(self.badges(path, metadata["runs_peer"]))
            lines.append(f"| [{path.stem}](notebooks/{path.name}) | {' | '.join(cells)} | {badges} |")
        return "\n".join(lines) + "\n"


def fold(cell: dict) -> None:
    """Hide the code of a cell whose title asks for a form, in Colab and in Jupyter."""
    if re.match("# @title .*" + re.escape(FORM), "".join(cell["source"])):
        cell["metadata"] |= {"cellView": "form", "jupyter": {"source_hidden": True}}


def version() -> str:
    """Return the version of the kit."""
    return re.search(r'__version__ = "(.+)"', (ROOT / "dalle_lib" / "version.py").read_text(encoding="utf-8"))[1]


def notebooks() -> list[Path]:
    """Return the notebooks in the order of their numbers."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def made(repository: Repository) -> dict[Path, str]:
    """Return the files that are made from the address and the version, each with the text that it must hold."""
    return {path: repository.notebook(path) for path in notebooks()} | {ROOT / "colab_badges.md": repository.table()}


def move(old: Repository, new: Repository) -> None:
    """Replace the old address by the new one in pyproject.toml and in every text that names it."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    kinds = {".md", ".py", ".toml", ".yml", ".yaml", ".sh", ".ipynb"}
    files = [ROOT / name for name in names if Path(name).suffix in kinds or Path(name).name == "Dockerfile"]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    project = ROOT / "pyproject.toml"
    texts[project] = texts[project].replace(f'\nref = "{old.ref}"', f'\nref = "{new.ref}"')
    for file, text in texts.items():
        if (renamed := old.rename(text, new)) != text or file == project:
            file.write_text(renamed, encoding="utf-8")


def main(slug: str | None = None, ref: str | None = None) -> None:
    """Write everything that is made from the repository's address and the version.

    With a slug (owner/name) or a ref (a branch or tag), the repository is moved there first.
    """
    old = Repository.read()
    new = Repository(slug or old.slug, ref or old.ref)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", new.slug) or not re.fullmatch(r"[\w./-]+", new.ref):
        raise SystemExit(f"expected SLUG=owner/name and REF=a branch or tag, but got {new.slug!r} and {new.ref!r}.")
    if re.match(r"v\d", new.ref) and new.ref != f"v{version()}":
        raise SystemExit(f"expected REF=v{version()}, the version in dalle_lib/__init__.py, but got {new.ref}.")
    if new != old:
        move(old, new)
    for file, text in made(new).items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
