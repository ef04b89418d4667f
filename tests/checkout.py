"""What tests need of this checkout: its scripts, its notebooks' cells, and a copy in place of the published one."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def load_script(name: str):
    """Return a script of the checkout, named by its path without .py, as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_of(notebook: Path, text: str) -> str:
    """Return the source of the only code cell that contains `text`."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (source,) = (source for source in sources if text in source)
    return source


def copy_checkout(folder: Path) -> Path:
    """Copy all files that git tracks or would track, as they are now, to `folder`, and return it."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def commit_all(folder: Path, branch: str = "main") -> None:
    """Make `folder` a git repository with one commit on `branch`."""
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for command in ["init", "--quiet", "-b", branch], ["add", "--all"], [*who, "commit", "--quiet", "-m", "all"]:
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)


def publish_here(folder: Path, branch: str = "main") -> dict[str, str]:
    """Copy this checkout to `folder`, and return the environment in which git finds it at its published address."""
    commit_all(copy_checkout(folder), branch)
    address = f"https://github.com/{load_script('scripts/publish').Repository.read().slug}"
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }
