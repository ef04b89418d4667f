"""The package as it would be published: what is in it, and that it runs without the repository."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from checkout import ROOT, copy_checkout

import dalle_lib

NAME = f"dalle_lib-{dalle_lib.__version__}"
ASSETS = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("dalle_lib/assets/**/*") if file.is_file())


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run this Python with `command` to its end, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, *formats: str) -> Path:
    """Return the folder with the distributions of `source`, built with the installed setuptools: nothing is fetched."""
    run("-m", "build", "--no-isolation", *formats, "--outdir", source / "dist", source, cwd=source)
    return source / "dist"


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the wheel and the source archive of this checkout."""
    return build(copy_checkout(tmp_path_factory.mktemp("package")), "--sdist", "--wheel")


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    return dist / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def archive(dist) -> Path:
    return dist / f"{NAME}.tar.gz"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder into which the wheel was installed, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    run("-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--target", folder, wheel, cwd=folder)
    return folder


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def run_installed(installed: Path, *command: str | Path, cwd: Path) -> str:
    """Run Python outside the repository, with the installed kit and this environment's other packages."""
    assert not cwd.is_relative_to(ROOT)
    return run("-P", *command, cwd=cwd, PYTHONPATH=str(installed))


def test_the_wheel_holds_the_package_its_assets_and_their_licences(wheel):
    names = names_in_wheel(wheel)
    modules = {str(file.relative_to(ROOT)) for file in ROOT.glob("dalle_lib/**/*.py")}
    licences = [name for name in ASSETS if name.startswith("dalle_lib/assets/LICENSES/")]
    assert len(licences) > 4
    about = {f"{NAME}.dist-info/licenses/{name}" for name in ["LICENSE", *licences]}
    expected = modules | set(ASSETS) | about | {"dalle_lib/memory/accuracy.json"}
    assert {name for name in names if "/licenses/" in name or not name.startswith(f"{NAME}.dist-info/")} == expected


def test_the_source_archive_holds_the_package_and_what_builds_it(archive):
    with tarfile.open(archive) as file:
        names = {member.name.removeprefix(f"{NAME}/") for member in file.getmembers() if member.isfile()}
    beside = {name for name in names if not name.startswith(("dalle_lib/", "dalle_lib.egg-info/"))}
    assert beside == {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg",
    }  # fmt: skip
    assert set(ASSETS) < names


def test_the_source_archive_builds_the_same_wheel(archive, wheel, tmp_path):
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    (again,) = build(tmp_path / NAME, "--wheel").glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        assert {file.filename: file.CRC for file in one.infolist()} == {
            file.filename: file.CRC for file in other.infolist()
        }


def test_an_index_would_take_both(dist, tmp_path):
    checked = run("-m", "twine", "--no-color", "check", "--strict", *sorted(dist.iterdir()), cwd=tmp_path)
    assert checked.count("PASSED") == 2


def test_its_page_on_an_index_leads_to_the_repository(wheel):
    with zipfile.ZipFile(wheel) as file:
        about = message_from_bytes(file.read(f"{NAME}.dist-info/METADATA"))
    links = dict(link.split(", ") for link in about.get_all("Project-URL"))
    assert set(links) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(link.startswith(links["Repository"]) for link in links.values())
    for name in "Documentation", "Changelog":
        assert (ROOT / re.sub(r".*/(?:blob|tree)/[^/]+/", "", links[name])).exists()
    assert about["Version"] == dalle_lib.__version__
    assert about["License-Expression"] == "Apache-2.0"


def test_the_installed_package_is_the_one_that_runs(installed, tmp_path):
    code = "import dalle_lib; print(dalle_lib.__file__, dalle_lib.__version__)"
    assert run_installed(installed, "-c", code, cwd=tmp_path).split() == [
        str(installed / "dalle_lib" / "__init__.py"), dalle_lib.__version__,
    ]  # fmt: skip


def test_the_installed_command_explains_draws_and_calculates(installed, tmp_path):
    command = installed / "bin" / "dalle-lib"
    assert "generate" in run_installed(installed, command, "--help", cwd=tmp_path)
    assert "gpt2-large" in run_installed(installed, command, "memory", "gpt2-large", cwd=tmp_path)
    run_installed(
        installed, command, "generate", "green frog", "--candidates", "2", "--best", "1", "--out", "out", cwd=tmp_path
    )
    assert list((tmp_path / "out").glob("*.png"))
