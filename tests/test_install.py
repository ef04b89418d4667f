"""What a notebook's first cells do before the kit is installed: refuse, explain, install."""

import os
import re
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from checkout import NOTEBOOKS, ROOT, publish_here, source_of

import dalle_lib
from dalle_lib.checks import report

JOIN = ROOT / "notebooks" / "01_join_training.ipynb"
INSTALL = source_of(JOIN, "VERSION = ")
POLICY = source_of(JOIN, "PAID_COLAB:")


def run_cell(source: str, python: str | Path = sys.executable, cwd: str | Path = "/", **environment: str):
    platforms = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE")
    clean = {name: value for name, value in os.environ.items() if name not in platforms}
    command = [python, "-c", source]
    return subprocess.run(command, env=clean | environment, cwd=cwd, capture_output=True, text=True, timeout=600)


@pytest.fixture
def with_pip(tmp_path) -> Path:
    """The interpreter of an environment that holds pip alone."""
    venv.create(tmp_path / "with_pip", with_pip=True)
    return tmp_path / "with_pip" / "bin" / "python"


def test_nothing_happens_where_this_version_is_installed(tmp_path):
    done = run_cell(INSTALL, cwd=tmp_path, PATH="")  # no git can be found
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


NOT_PUBLISHED = re.compile(r"RuntimeError: .* \(main\) is not published yet, or moved; git says:\n.*main")
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "", "PIP_FIND_LINKS": ""}
"""A proxy that refuses, for pip and for git, and no wheels kept on this machine."""


def test_what_is_not_published_is_said_to_be_so(with_pip, tmp_path):
    done = run_cell(INSTALL, with_pip, **publish_here(tmp_path / "published", branch="another"))
    assert NOT_PUBLISHED.search(done.stderr)


def test_without_internet_it_says_what_to_switch_on(with_pip):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        for proxy in NO_NETWORK["https_proxy"], f"http://127.0.0.1:{silent.getsockname()[1]}":
            without = NO_NETWORK | {"https_proxy": proxy, "PIP_CONFIG_FILE": os.devnull}
            done = run_cell(INSTALL, with_pip, **without)
            assert "RuntimeError: no internet: on Kaggle, turn it on under Settings, Internet" in done.stderr
            assert "No matching distribution found" in done.stderr, "pip's own words follow"


def test_the_index_that_pip_is_configured_for_counts_as_the_internet(with_pip, tmp_path):
    page = tmp_path / "simple" / "tyro" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="tyro-1.0.0-py3-none-any.whl">tyro-1.0.0-py3-none-any.whl</a>')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {(tmp_path / 'simple').as_uri()}\n")
    published = publish_here(tmp_path / "published", branch="another")
    mirror = NO_NETWORK | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    assert NOT_PUBLISHED.search(run_cell(INSTALL, with_pip, **published, **mirror).stderr)


def test_no_notebook_or_script_holds_an_index_address():
    files = [*NOTEBOOKS, ROOT / "install.py", *ROOT.glob("scripts/*.py"), *ROOT.glob("dalle_lib/**/*.py")]
    found = [file.name for file in files if re.search(r"https?://[^\s\"']*/simple\b", file.read_text())]
    assert found == []


@pytest.mark.images
def test_a_package_that_would_have_to_be_replaced_stays_and_pip_says_why(with_pip, tmp_path):
    packages = next(with_pip.parent.parent.glob("lib/python*/site-packages"))
    old = packages / "pyarrow-10.0.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 10.0.0\n")
    (old / "RECORD").write_text("")
    done = run_cell(INSTALL, with_pip, **publish_here(tmp_path / "published"))
    assert "has changed none of them" in done.stderr
    assert re.search(r"pyarrow>=18.*\n(.*\n)*.*pyarrow==10", done.stderr)
    assert {file.name.split("-")[0] for file in packages.glob("*.dist-info")} == {"pip", "pyarrow", "setuptools"}


def test_a_run_of_others_is_refused_on_colab_before_anything_is_installed():
    settings = 'RUN, NAME, PAID_COLAB = "some-org/some-run", "ada", {paid}\n'
    done = run_cell(settings.format(paid=False) + POLICY, COLAB_RELEASE_TAG="release")
    assert done.returncode != 0
    words = done.stderr.split("RuntimeError: ")[1]
    own_machine = "dalle-lib join --run some-org/some-run --name ada"
    ways = ["WSL2", own_machine, "Kaggle", "running distributed computing workers", "account", "PAID_COLAB"]
    assert sorted(ways, key=words.index) == ways, "the ways that are allowed come first"
    assert run_cell(settings.format(paid=True) + POLICY, COLAB_RELEASE_TAG="release").returncode == 0
    assert run_cell(settings.format(paid=False) + POLICY).returncode == 0
    on_kaggle = {"COLAB_RELEASE_TAG": "release", "KAGGLE_KERNEL_RUN_TYPE": "Batch"}
    assert run_cell(settings.format(paid=False) + POLICY, **on_kaggle).returncode == 0
    assert run_cell('RUN, PAID_COLAB = "emoji-mini", False\n' + POLICY, COLAB_RELEASE_TAG="release").returncode == 0
    text = JOIN.read_text()
    assert text.index("PAID_COLAB:") < text.index("VERSION = ")


@pytest.mark.images
def test_a_restart_is_asked_for_only_where_another_version_is_in_use(with_pip, tmp_path, monkeypatch):
    """The kit itself is built and installed, here without its dependencies."""
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    published = publish_here(tmp_path / "published")
    in_use = run_cell(
        f"import sys, types\nsys.modules['dalle_lib'] = types.ModuleType('dalle_lib')\n{INSTALL}", with_pip, **published
    )
    assert "restart the kernel" in in_use.stderr
    assert run_cell("import dalle_lib; print(dalle_lib.__version__)", with_pip).stdout.strip() == dalle_lib.__version__
    again = run_cell(INSTALL, with_pip, **published)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_the_versions_that_matter_are_those_installed():
    versions = report.versions()
    assert versions["torch"] == torch.__version__.split("+")[0]
    assert versions["dalle-lib"] == dalle_lib.__version__
    assert set(versions.index) >= {"Python", "hivemind", "protobuf", "ipywidgets"}
