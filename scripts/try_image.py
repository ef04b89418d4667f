"""Does the kit fit into a platform's image, so that packages are added and none is replaced?

An image is the list of packages that a platform such as Colab has installed.
`python scripts/try_image.py tests/data/images/colab-2026-08-19.txt --python 3.13` prints what would be added, or why
the kit does not fit. With `--build FOLDER` it also makes an environment of the image's packages that the kit touches.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import tyro

ROOT = Path(__file__).parent.parent
JUPYTER = ("ipykernel", "ipython", "ipywidgets", "jupyter-client", "nbclient", "nbconvert", "notebook", "pip")
"""Packages that run a notebook, beside those that the kit needs."""
ELSEWHERE = re.compile("nvidia-")
"""CUDA's libraries are left out of the comparison: an image's torch may bring its own, unlike the index's torch."""


class DoesNotFit(RuntimeError):
    """No set of packages satisfies both the kit and the image."""


@dataclass(frozen=True)
class Image:
    """The packages of a platform with their versions, none of which may change."""

    python: str
    """Such as 3.13."""
    packages: dict[str, str]
    """A constraint, such as ==2.1.3, for each normalised name."""

    @classmethod
    def read(cls, listing: Path, python: str) -> Self:
        """Return the image that `pip freeze` listed in a file; lines without a version are skipped."""
        found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;+]+)", listing.read_text(encoding="utf-8"), re.MULTILINE)
        return cls(python, {normal(n): f"=={v}" for n, v in found if not ELSEWHERE.match(normal(n))})

    def with_changes(self, python: str, **constraints: str | None) -> Self:
        """Return this image with another Python and other constraints.

        Names are written with underscores; None removes a package.
        """
        changes = {normal(name): constraint for name, constraint in constraints.items()}
        packages = {name: constraint for name, constraint in (self.packages | changes).items() if constraint}
        return replace(self, python=python, packages=packages)

    def resolve(self, extras: str = "all", platform: str = "linux", only_wheels: bool = False) -> dict[str, str]:
        """Return the version of every package that the kit with `extras` needs in this image.

        Raises DoesNotFit, with the resolver's words, if there is no such set.
        """
        command = [
            *uv("pip", "compile"), str(ROOT / "pyproject.toml"), "--quiet", "--no-header", "--no-annotate",
            *(f"--extra={extra}" for extra in extras.split(",")),
            "--python-version", self.python, "--python-platform", platform,
            *(["--only-binary", ":all:"] if only_wheels else []),
            *(["--constraint", "-"] if self.packages else []),
        ]  # fmt: skip
        # bitsandbytes has wheels from this macOS on.
        environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
        done = subprocess.run(command, input=self.constraints(), capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise DoesNotFit(done.stderr)
        return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE)}

    def constraints(self) -> str:
        """Return the text of a constraints file for pip."""
        return "".join(f"{name}{constraint}\n" for name, constraint in self.packages.items())

    def build(self, folder: Path) -> Path:
        """Make an environment in `folder` of this image's packages that the kit touches; return its interpreter."""
        needed = self.resolve()
        touched = [f"{n}{self.packages[n]}" for n in sorted({*needed, *JUPYTER} & set(self.packages))]
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter(self.python), "-m", "venv", "--without-pip", str(folder)], check=True)
        python = folder / "bin" / "python"
        command = [*uv("pip", "install"), "--quiet", "--compile-bytecode", "--python", str(python), "-c", "-", *touched]
        subprocess.run(command, input=self.constraints(), text=True, check=True)
        return python


def kaggle(colab: Image) -> Image:
    """Return Kaggle's image: it is made from Colab's, with an older Python and other versions of a few packages."""
    return colab.with_changes(
        "3.12", protobuf="==5.29.5", setuptools="<82", grpcio_tools=">=1.60", ipywidgets="==8.1.5",
        jupyterlab_widgets=None, widgetsnbextension=None,
    )  # fmt: skip


def uv(*arguments: str) -> list[str]:
    """Return the command line that runs this environment's uv with `arguments`."""
    return [sys.executable, "-m", "uv", *arguments]


def interpreter(version: str) -> str:
    """Return a Python of that version from PATH or pyenv. Raises FileNotFoundError if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    raise FileNotFoundError(
        f"this image needs Python {version}, but none was found on PATH or in pyenv: run pyenv install {version}."
    )


def normal(name: str) -> str:
    """Return a package's name in lower case with single hyphens, as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(listing: tyro.conf.Positional[Path], python: str = "3.13", build: Path | None = None) -> None:
    """Print what installing the kit would add to the image of `listing`; exit with 1 if the kit does not fit."""
    image = Image.read(listing, python)
    try:
        needed = image.resolve()
    except DoesNotFit as problem:
        sys.exit(f"The kit does not fit into {listing}:\n{problem}")
    print("\n".join(f"{name}=={version}" for name, version in needed.items() if name not in image.packages))
    if build is not None:
        image.build(build)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
