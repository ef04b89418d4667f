"""Execute notebooks on this machine, and keep what they show for the site's pages.

The notebooks in `notebooks/` hold no outputs, and some take minutes, so that the site's build executes none: their
pages show what this script has kept in `site/executed/`, and say when, where and with which commit it was made. A test
fails when a notebook's code is no longer the one that was executed. Then commit the notebook, and run

    python site/execute.py

which executes, one after another, the notebooks whose code has changed; with names, exactly those.
"""

import os
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import nbformat
import torch
import tyro
from making import executed
from making.repository import ROOT
from nbclient import NotebookClient

from dalle_lib.machine import name_of


def main(notebooks: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()) -> None:
    """Execute notebooks, and keep what they show.

    Args:
        notebooks: the files to execute; without any, those whose code has changed.
    """
    for path in notebooks or executed.stale():
        print(f"{path.name}: executing", flush=True)
        began = time.monotonic()
        notebook = run(path)
        about = where() | {"seconds": round(time.monotonic() - began)}
        print(f"{path.name}: {about['seconds']} s, {executed.store(path, notebook, about)} bytes", flush=True)


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook `path` with the outputs of a run from an empty folder. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=None, startup_timeout=600, resources=resources).execute()
    return notebook


def where() -> dict[str, str | bool]:
    """Return the day, this machine and whether it did other work too, and the commit that is checked out."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    machine = f"{os.cpu_count()} cores of {name_of(torch.device('cpu'))}"
    busy = os.getloadavg()[2] > 2 * os.cpu_count()
    return {"day": datetime.now(UTC).date().isoformat(), "machine": machine, "busy": busy, "commit": commit}


if __name__ == "__main__":
    tyro.cli(main)
