"""Promises of the repository as a whole."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import dalle_lib

ROOT = Path(__file__).parent.parent


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_importing_the_package_loads_nothing_heavy_and_changes_nothing():
    code = (
        "import sys, threading, logging, dalle_lib, dalle_lib.swarm.supervisor;"
        "heavy = {'torch', 'hivemind', 'transformers', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy; assert threading.active_count() == 1; assert not logging.getLogger().handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_badges_are_those_of_the_notebooks():
    assert (ROOT / "colab_badges.md").read_text() == load_script("make_badges").page()


def test_the_repository_is_named_once():
    slug = load_script("make_badges").slug()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert set(re.findall(r"github\.com/([\w.-]+/[\w.-]+?)(?:@|\.git|/blob|\")", notebook.read_text())) <= {slug}


def test_every_file_and_target_that_the_readme_names_exists():
    readme = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make (\w+)", readme)) <= targets


def test_the_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+", dalle_lib.__version__)
