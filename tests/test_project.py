"""What the repository as a whole promises."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import NOTEBOOKS, ROOT, commit_all, copy_checkout, load_script, source_of

import dalle_lib


def test_importing_the_package_loads_nothing_heavy_and_changes_nothing():
    code = (
        "import sys, threading, logging, dalle_lib, dalle_lib.swarm.process.supervisor;"
        "heavy = {'torch', 'hivemind', 'transformers', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy; assert threading.active_count() == 1; assert not logging.getLogger().handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_peer_needs_the_swarm_extra_alone():
    others = (
        "altair vl_convert IPython ipywidgets PIL einops taming transformers bitsandbytes datasets nbclient nbconvert"
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({others.split()}));"  # importing what is None there fails
        "import dalle_lib.cli, dalle_lib.dashboard.watching, dalle_lib.swarm.peer.trainer;"
        "from dalle_lib.checks.report import problem_report; print(problem_report())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "free memory" in done.stdout, done.stderr


def test_notebooks_and_badges_are_made_from_one_address():
    publish = load_script("scripts/publish")
    for file, text in publish.made(publish.Repository.read()).items():
        assert file.read_text() == text, f"{file.name}: run python scripts/publish.py"


def test_every_notebook_installs_by_the_same_cell():
    assert len({source_of(notebook, "VERSION = ") for notebook in NOTEBOOKS}) == 1
    assert f'"{dalle_lib.__version__}"' in source_of(NOTEBOOKS[0], "VERSION = ")


def test_the_repository_moves_by_one_command_and_back(tmp_path):
    commit_all(copy_checkout(tmp_path))
    publish = load_script("scripts/publish")
    old, new = publish.Repository.read(), publish.Repository(slug="some-org/kit", ref=f"v{dalle_lib.__version__}")

    def texts() -> dict[Path, str]:
        files = (file for file in tmp_path.rglob("*") if file.is_file() and ".git" not in file.parts)
        return {
            file: file.read_text() for file in files if file.suffix in {".md", ".py", ".toml", ".ipynb", ".yml", ""}
        }

    def move(to) -> None:
        command = [sys.executable, "scripts/publish.py", "--slug", to.slug, "--ref", to.ref]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120)

    before = texts()
    move(new)
    after = texts()
    assert not [file for file, text in after.items() if old.slug in text], "a copy of the address was left"
    for notebook in (tmp_path / "notebooks").glob("*.ipynb"):
        installed = f'SOURCE, REF, VERSION = "https://github.com/{new.slug}", "{new.ref}"'
        assert installed in source_of(notebook, "VERSION = ")
        assert re.findall(rf"{new.slug}/(?:blob|raw)/([^/]+)/", after[notebook]) == 3 * [new.ref]
    assert f"{new.slug}@{new.ref}" in after[tmp_path / "README.md"]
    links = tomllib.loads(after[tmp_path / "pyproject.toml"])["project"]["urls"]
    assert links["Documentation"] == f"https://github.com/{new.slug}/tree/{new.ref}/docs"
    assert links["Changelog"] == f"https://github.com/{new.slug}/blob/{new.ref}/CHANGELOG.md"
    move(old)
    assert texts() == before
    with pytest.raises(subprocess.CalledProcessError):
        move(publish.Repository(slug=old.slug, ref="v0.0.1"))
    assert texts() == before, "a tag that is not the version changes nothing"


def test_policy_and_install_cells_are_folded_away():
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        folded = [cell for cell in cells if cell["metadata"].get("cellView") == "form"]
        assert all(cell["metadata"]["jupyter"] == {"source_hidden": True} for cell in folded)
        code = "".join("".join(cell["source"]) for cell in folded)
        assert "VERSION = " in code
        assert ("PAID_COLAB:" in code) == ("PAID_COLAB:" in notebook.read_text())


def test_notebooks_ask_for_the_machine_that_they_use():
    for notebook in NOTEBOOKS:
        metadata = json.loads(notebook.read_text())["metadata"]
        uses_gpu = notebook.stem[:2] in ("01", "02", "03")
        assert (metadata.get("accelerator") == "GPU") == uses_gpu
        assert (metadata["colab"].get("gpuType") == "T4") == uses_gpu
        assert (metadata["kaggle"]["accelerator"] == "nvidiaTeslaT4") == uses_gpu
        assert metadata["kaggle"]["isInternetEnabled"]


def test_kaggle_comes_first_where_a_peer_is_run():
    rows = [line for line in (ROOT / "colab_badges.md").read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == len(NOTEBOOKS)
    for row, notebook in zip(rows, NOTEBOOKS, strict=True):
        assert (row.index("kaggle.com/kernels") < row.index("colab.research")) == ("take_part" in notebook.read_text())


def test_every_file_and_target_that_the_readme_names_exists():
    readme = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([\w-]+)", readme)) <= targets


SHAPES = {"pictures", "candidates", "prompt", "length"}
"""Names in shapes of jaxtyping, each alone in its text; ruff takes them for names of Python."""


def test_no_name_is_undefined_but_those_in_shapes():
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    found = subprocess.run([*ruff, "dalle_lib"], cwd=ROOT, capture_output=True, text=True).stdout
    assert set(re.findall("Undefined name `(.*)`", found)) == SHAPES


def test_no_python_file_has_more_than_300_lines():
    listing = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in listing.stdout.split()}
    assert not {name: length for name, length in lengths.items() if length > 300}


def test_the_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+", dalle_lib.__version__)
