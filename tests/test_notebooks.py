"""Notebooks as their readers run them: from an empty folder, with the built package."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from checkout import NOTEBOOKS, copy_checkout

from dalle_lib.notebook_run import execute


@pytest.fixture(scope="session")
def python_with_wheel(tmp_path_factory) -> Path:
    """The interpreter of an environment that has the built package, and the rest of this one's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_checkout(folder / "source")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True, timeout=600)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_an_empty_folder_with_the_built_package(notebook, python_with_wheel, swarm_folder):
    copy = swarm_folder / notebook.name
    # Less training than by default: `make test-images` runs the notebooks as they are.
    copy.write_text(re.sub(r"MINUTES = [\d.]+ ", "MINUTES = 2.0 ", notebook.read_text()))
    location = subprocess.run(
        [python_with_wheel, "-c", "import dalle_lib; print(dalle_lib.__file__)"],
        check=True, capture_output=True, text=True, cwd=swarm_folder,
    ).stdout  # fmt: skip
    assert str(python_with_wheel.parent.parent) in location
    pytest_options = ["-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=900"]
    done = subprocess.run(
        [python_with_wheel, "-m", "pytest", *pytest_options, copy.name],
        cwd=swarm_folder, capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short_and_stored_without_outputs(notebook):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert 8 <= len(cells) <= 25
    assert all(len(cell["source"]) <= 20 for cell in cells)
    assert not any(cell["outputs"] for cell in cells)
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in cells) == 1


def test_an_executed_notebook_becomes_a_page_that_needs_no_network(tmp_path):
    cells = [{"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None,
              "source": "from IPython.display import HTML; HTML('<b>hello</b>')"}]  # fmt: skip
    notebook = tmp_path / "small.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    page, ticks = tmp_path / "out" / "small.html", []
    execute(notebook, page, tmp_path, lambda: ticks.append(1))
    html = page.read_text()
    assert "<b>hello</b>" in html
    assert ticks
    for attribute in 'src="http', "src='http", 'href="http', "@import":
        assert attribute not in html.replace('href="https://jupyter', ""), attribute
