"""Notebooks as their readers run them: from an empty folder, with the built package."""

import ast
import errno
import importlib
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from urllib.request import urlopen

import pytest
from checkout import NOTEBOOKS, copy_checkout

from dalle_lib.notebook_run import _is_no_closed_socket, execute
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.streaming import stream_codes


@pytest.fixture(scope="session")
def python_with_wheel(tmp_path_factory) -> Path:
    """The interpreter of an environment that has the built package, and the rest of this one's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_checkout(folder / "source")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel]
    subprocess.run(install, check=True, timeout=600)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def code_cells(notebook: Path) -> list[dict]:
    """Return a notebook's code cells, each with its source as one text."""
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


EXECUTE = """\
import sys
from pathlib import Path
from dalle_lib.notebook_run import execute
execute(Path(sys.argv[1]), Path(sys.argv[2]), Path.cwd(), lambda: None)
"""
LESSONS = ["quantize", "dequantize", "adam_step", "store", "train_step"]
"""What a reader of notebook 03 builds: its subject."""
FOLDED = {"jupyter": {"source_hidden": True}}
"""The metadata of a cell whose code Jupyter folds away."""
(PREPARE,) = (path for path in NOTEBOOKS if path.stem.startswith("05"))
"""Runs with a stand-in for the Hub; `make test-images` runs it without."""
STDERR = 'data-mime-type="application/vnd.jupyter.stderr"'
"""How the page of an executed notebook marks what it shows in red."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("notebook", [each for each in NOTEBOOKS if each != PREPARE], ids=lambda path: path.stem)
def test_it_runs_from_an_empty_folder_with_the_built_package_and_shows_nothing_red(
    notebook, python_with_wheel, swarm_folder
):
    # Training is shorter, and the smaller run draws what it knows.
    source = re.sub(r"MINUTES = [\d.]+ ", "MINUTES = 1.0 ", notebook.read_text())
    source = source.replace('MODEL = \\"emoji\\"', 'MODEL = \\"emoji-mini\\"').replace("polar bear", "bear")
    require_runs(source, python_with_wheel, swarm_folder)
    files = [file for file in swarm_folder.rglob("*") if file.is_file() and file.stat().st_size < 10_000_000]
    assert not [file for file in files if b"_of_this_evening" in file.read_bytes()], "a Hub token was written"


def require_runs(notebook: str, python_with_wheel: Path, folder: Path) -> str:
    """Execute a notebook's source with the built package in a folder, and return its page, which has nothing red."""
    copy, page = folder / "notebook.ipynb", folder / "page.html"
    copy.write_text(notebook)
    location = subprocess.run(
        [python_with_wheel, "-c", "import dalle_lib; print(dalle_lib.__file__)"],
        check=True, capture_output=True, text=True, cwd=folder,
    ).stdout  # fmt: skip
    assert str(python_with_wheel.parent.parent) in location
    # nbconvert's templates lie beside this environment's packages.
    environment = os.environ | {"JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter")}
    done = subprocess.run(
        [python_with_wheel, "-c", EXECUTE, copy.name, page.name],
        cwd=folder, capture_output=True, text=True, timeout=1100, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    html = page.read_text(encoding="utf-8")
    red = html.split(STDERR)[1:]
    assert not red, [re.sub(r"<[^>]+>", "", text)[:600] for text in red]
    return html


def test_notebook_05_publishes_a_data_set_reads_it_back_and_makes_a_run_of_it(
    python_with_wheel, swarm_folder, hub, monkeypatch
):
    token = "hf_madeUpForThisTest"
    hub.users[token] = User("ada")
    monkeypatch.setenv("HF_TOKEN", token)
    source = PREPARE.read_text().replace('PUSH_TO = \\"\\"', 'PUSH_TO = \\"ada/icons-codes\\"')
    html = require_runs(source, python_with_wheel, swarm_folder)
    assert "bytes, from hf://datasets/ada/icons-codes." in html
    assert token not in html
    data = json.loads((swarm_folder / "outputs" / "icons" / "run" / "run.json").read_text())["data"]
    assert data["train"] == "hf://datasets/ada/icons-codes/train"
    with urlopen(f"{hub.url}/api/datasets/ada/icons-codes") as answer:
        assert json.load(answer)["sha"] == data["revision"]
    read = stream_codes(data["train"], seed=0, revision=data["revision"], manifest=data["manifest"])
    assert read.data.manifest.rows > 190


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_are_few_short_and_stored_without_outputs(notebook):
    cells = code_cells(notebook)
    lengths = [len(cell["source"].splitlines()) for cell in cells]
    assert 8 <= len(cells) <= 28  # notebook 03 builds its optimizer in small steps
    assert max(lengths) <= 20
    assert statistics.median(lengths) <= 8
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_use_the_package_rather_than_define_things(notebook):
    nodes = [node for cell in code_cells(notebook) for node in ast.walk(ast.parse(cell["source"]))]
    assert not any(isinstance(node, ast.ClassDef) for node in nodes)
    functions = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert len(functions) <= 1 or functions == LESSONS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_imports_of_the_package_is_there(notebook):
    nodes = [node for cell in code_cells(notebook) for node in ast.walk(ast.parse(cell["source"]))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith("dalle_lib")]
    assert imports
    for node in imports:
        for name in node.names:
            assert hasattr(importlib.import_module(node.module), name.name), f"{node.module}.{name.name}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_settings_are_a_form_with_folded_code(notebook):
    forms = [cell for cell in code_cells(notebook) if cell["source"].startswith("# @title")]
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in forms) == 1
    for form in forms:
        assert re.match(r'# @title .+ \{display-mode: "form"\}\n', form["source"])
        assert form["metadata"].items() >= FOLDED.items()


def test_a_socket_that_is_closed_early_is_not_told_and_other_errors_are(caplog):
    log = logging.getLogger("tornado.general")
    log.addFilter(_is_no_closed_socket)
    try:
        for number in errno.ENOTSOCK, errno.EIO:
            try:
                raise OSError(number, f"error {number}")
            except OSError:
                log.exception("in a callback")
    finally:
        log.removeFilter(_is_no_closed_socket)
    assert [record.exc_info[1].errno for record in caplog.records if record.name == log.name] == [errno.EIO]


def test_an_executed_notebook_becomes_a_page_that_needs_no_network(tmp_path, capfd):
    sources = ["from IPython.display import HTML; HTML('<b>hello</b>')", "import sys; print('red', file=sys.stderr)"]
    cells = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
        for i, text in enumerate(sources)
    ]
    cells[1] |= {"source": f'# @title Noise {{display-mode: "form"}}\n{sources[1]}', "metadata": FOLDED}
    notebook = tmp_path / "small.ipynb"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    page, ticks = tmp_path / "out" / "small.html", []
    execute(notebook, page, tmp_path, lambda: ticks.append(1))
    assert capfd.readouterr() == ("", ""), "what runs a notebook leaves the terminal to the program that uses it"
    html = page.read_text()
    assert "<b>hello</b>" in html
    assert html.count(STDERR) == 1
    assert re.findall(r"<summary[^>]*>\s*(\w+)\s*</summary>", html) == ["Noise"]
    assert re.search(r"\.jp-OutputArea-output[^{}]*\{[^}]*overflow-x: auto", html)
    assert ticks
    for attribute in 'src="http', "src='http", 'href="http', "@import":
        assert attribute not in html.replace('href="https://jupyter', ""), attribute


def test_what_the_exercises_of_notebook_03_repeat_is_assigned_by_one_cell():
    (tutorial,) = (path for path in NOTEBOOKS if path.stem.startswith("03"))
    assigned = [
        {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for cell in code_cells(tutorial)
        for statement in ast.parse(cell["source"]).body
        if not isinstance(statement, ast.FunctionDef)
    ]
    for name in "m", "r", "linear", "dynamic", "ways", "exact":
        assert sum(name in names for names in assigned) == 1, name
