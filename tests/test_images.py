"""The notebooks run among the packages that Colab and Kaggle have installed, and none of those changes."""

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from checkout import NOTEBOOKS, ROOT, load_script, publish_here
from filelock import FileLock
from nbclient import NotebookClient

from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings, local_swarm

pytestmark = pytest.mark.images

COLAB = ROOT / ".venv-colab"
KERNEL = "image"
try_image = load_script("scripts/try_image")


@pytest.fixture(scope="module")
def colab() -> try_image.Image:
    """The packages that Colab has installed."""
    return try_image.Image.read(ROOT / "tests" / "data" / "images" / "colab-2026-08-19.txt", "3.13")


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Iterator[Path]:
    """The interpreter of a fresh session on Colab: the image's packages, which no session can change for another.

    Its notebooks find the kit at its published address, which git looks up in this checkout. The processes of one test
    run share it, as installing the kit takes over a minute.
    """
    folder = of_this_run(tmp_path_factory, "session")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            begin_session(folder)
    os.environ["JUPYTER_PATH"] = str(folder / "jupyter")
    yield folder / "venv" / "bin" / "python"
    del os.environ["JUPYTER_PATH"]


def of_this_run(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a path that is the same in all processes of one test run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name


def begin_session(folder: Path) -> None:
    """Make a session and its kernel in a new folder."""
    subprocess.run([COLAB / "bin" / "python", "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "image.pth").write_text(f"{next((COLAB / 'lib').glob('python*/site-packages'))}\n")
    python = folder / "venv" / "bin" / "python"
    kernel = folder / "jupyter" / "kernels" / KERNEL / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    environment = publish_here(folder / "published") | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    kernel.write_text(json.dumps({"argv": argv, "display_name": KERNEL, "language": "python", "env": environment}))


LISTING = """\
import json
from importlib.metadata import distributions
print(json.dumps({each.name: each.version for each in reversed(list(distributions()))}))
"""


def packages_of(python: Path) -> dict[str, str]:
    """Return the version of each package that an import would find, elsewhere than in this checkout."""
    return json.loads(subprocess.run([python, "-P", "-c", LISTING], check=True, capture_output=True, text=True).stdout)


def run_install_cell(folder: Path) -> nbformat.NotebookNode:
    """Run the cell that every notebook has, as a session does, and return it with its outputs."""
    notebook = nbformat.read(NOTEBOOKS[-1], as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "VERSION = " in cell.source]
    assert len(notebook.cells) == 1
    return NotebookClient(notebook, kernel_name=KERNEL, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.fixture(scope="module")
def installed(session, tmp_path_factory) -> dict[str, dict[str, str]]:
    """The session's packages before and after the install cell, which one process of a test run runs for all."""
    told = of_this_run(tmp_path_factory, "installed.json")
    with FileLock(f"{told}.lock"):
        if not told.exists():
            before = packages_of(session)
            (cell,) = run_install_cell(tmp_path_factory.mktemp("install")).cells
            printed = "".join(output.text for output in cell.outputs)
            assert re.search(r"dalle-lib +0\.", printed), "it ends with the versions that matter"
            told.write_text(json.dumps({"before": before, "after": packages_of(session)}))
    return json.loads(told.read_text())


@pytest.mark.timeout(1800)
def test_notebook_01_joins_the_run_that_05_has_made_where_nobody_looks(session, installed, swarm_folder, monkeypatch):
    """Kaggle's "Save & Run All" does it so. The other peer has this environment's versions of all packages.

    It takes longest, so it comes first.
    """
    by_number = {path.stem[:2]: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
    resources = {"metadata": {"path": str(swarm_folder)}}
    NotebookClient(by_number["05"], kernel_name=KERNEL, resources=resources).execute()
    card = RunCard.load(swarm_folder / "outputs" / "icons" / "run")
    with local_swarm(card, swarm_folder / "swarm", [PeerSettings(run="", name="ada", duty=0.5)]) as swarm:
        swarm.peers["ada"].wait_for("epoch", timeout_s=300)
        notebook = by_number["01"]
        (settings,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
        settings.source = f"RUN, NAME, TEAM, MINUTES, PAID_COLAB, OUT = {swarm.run!r}, 'you', '', 2.0, False, 'out'"
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
        NotebookClient(notebook, kernel_name=KERNEL, resources=resources).execute()
    (watched,) = (
        cell for cell in notebook.cells if cell.source.splitlines()[-1:] == ["watch(you, view=RunView(card, crew))"]
    )
    text = "".join(output.get("text", "") for output in watched.outputs)
    assert len(re.findall(r"^\d+/\d+ · loss ", text, re.MULTILINE)) >= 2
    saved = {file.name for file in (swarm_folder / "out").iterdir()}
    assert {"summary.json", "run.png", "run.svg", "before_after.png"} <= saved
    assert "best_of_32.png" not in saved, "the run's CLIP is on the Hub, and is not fetched"
    summary = json.loads((swarm_folder / "out" / "summary.json").read_text())
    assert min(summary["share_of_gradients"][name] for name in ("ada", "you")) > 0
    assert summary["after"]["held_out_loss"] < summary["before"]["held_out_loss"] - 0.5
    assert (swarm_folder / "out" / card.key / "you" / "model.safetensors").exists(), "to go on from next time"
    shown = [
        output.get("data", {}).get("text/html", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    assert sum(page.count("data:image/png;base64,") for page in shown) == 1


def test_the_image_is_there_as_listed(colab, session, installed):
    before = {try_image.normal(name): f"=={version}" for name, version in installed["before"].items()}
    listed = {name: version for name, version in before.items() if name in colab.packages}
    assert listed == {name: colab.packages[name] for name in listed}
    assert {"torch", "numpy", "protobuf", "grpcio", "pyarrow", "pandas", "ipykernel", "ipywidgets", "pip"} <= set(
        listed
    )
    assert colab.packages["ipywidgets"].startswith("==7.")


# Tests that need no session come before the others that do: meanwhile another process installs the kit for it.


def test_it_fits_into_kaggles_image(colab):
    image = try_image.kaggle(colab)
    needed = image.resolve()
    assert needed["protobuf"] == "5.29.5"
    assert needed["torch"] == image.packages["torch"].removeprefix("==")


@pytest.mark.parametrize("platform", ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_without_a_swarm_it_installs_from_wheels_elsewhere(platform, python):
    needed = try_image.Image(python, {}).resolve("inference,prepare,tutorial,notebooks", platform, only_wheels=True)
    assert {"torch", "bitsandbytes", "taming-transformers-rom1504"} <= set(needed)
    assert "hivemind" not in needed


def test_an_image_that_the_kit_does_not_fit_into_is_told_so(colab):
    with pytest.raises(try_image.DoesNotFit, match="pyarrow"):
        colab.with_changes("3.13", pyarrow="==10.0.0").resolve()


def test_installing_adds_packages_and_changes_none(installed):
    before, after = installed["before"], installed["after"]
    assert {name: after.get(name) for name in before} == before
    assert "dalle-lib" not in before
    assert {"dalle-lib", "hivemind", "bitsandbytes", "taming-transformers-rom1504"} <= set(after)


def test_a_second_run_does_nothing(session, installed, tmp_path):
    (cell,) = run_install_cell(tmp_path).cells
    assert cell.outputs == []
    assert packages_of(session) == installed["after"]
    assert list(tmp_path.iterdir()) == []


WHOLE_BELOW = ("01", "05")
FIRST_LEFT_OUT = {"02": "drawings = draw(", "03": "measure(folder", "04": "measure(model", "06": "evening.serve("}
"""A part of the first cell that draws, measures or trains, for each long notebook that `make test` runs to its end."""


def first_cells(notebook: nbformat.NotebookNode, left_out: str) -> list[nbformat.NotebookNode]:
    """Return the code cells before the first that contains `left_out`, and one with the imports of the others."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    end = next(number for number, cell in enumerate(cells) if left_out in cell.source)
    nodes = [node for cell in cells[end:] for node in ast.walk(ast.parse(cell.source))]
    imports = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [*cells[:end], nbformat.v4.new_code_cell("\n".join(imports))]


@pytest.mark.parametrize(
    "notebook", [path for path in NOTEBOOKS if not path.stem.startswith(WHOLE_BELOW)], ids=lambda path: path.stem
)
def test_its_imports_and_first_cells_work_there(notebook, session, installed, swarm_folder):
    content = nbformat.read(notebook, as_version=4)
    if left_out := FIRST_LEFT_OUT.get(notebook.stem[:2]):
        content.cells = first_cells(content, left_out)
    NotebookClient(content, kernel_name=KERNEL, resources={"metadata": {"path": str(swarm_folder)}}).execute()
    assert packages_of(session) == installed["after"]


WIDGETS = """\
import ipywidgets
from dalle_lib.dashboard.calculator import Calculator
from dalle_lib.dashboard.pictures import Studio
from dalle_lib.inference import TextToImage
from dalle_lib.memory import Training

assert ipywidgets.__version__.startswith("7.")
studio = Studio(TextToImage.from_run("emoji"), "green frog", candidates=4)
studio.knobs["seed"].value = 5
studio.button.click()
(drawn,) = studio.drawings
assert drawn.settings.seed == 5
calculator = Calculator("gpt2", "T4", Training())
before = calculator.bars.value
calculator.knobs["checkpointing"].value = True
assert calculator.result.training.checkpointing
assert calculator.bars.value != before
"""


def test_widgets_answer_there(session, installed, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(WIDGETS)])
    NotebookClient(notebook, kernel_name=KERNEL, resources={"metadata": {"path": str(tmp_path)}}).execute()
