"""Does the kit fit into an image, the packages that a platform has installed? Add what is missing, replace nothing.

`python scripts/try_image.py tests/data/images/colab-2026-08-19.txt --python 3.13` says what would be added, or why it
cannot be done; with `--build FOLDER` it makes an environment of those packages of the image that the kit touches.
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
"""What runs a notebook, beside what the kit needs."""
ELSEWHERE = re.compile("nvidia-")
"""CUDA's libraries: an image's torch finds them elsewhere than the index's, so their versions are not its own."""


class DoesNotFit(RuntimeError):
    """No set of packages satisfies both the kit and the image."""


@dataclass(frozen=True)
class Image:
    """The packages of a platform, by version: what must not change."""

    python: str
    """As 3.13."""
    packages: dict[str, str]
    """A constraint, as ==2.1.3, for each normalised name."""

    @classmethod
    def read(cls, listing: Path, python: str) -> Self:
        """Return the image of a `pip freeze`; lines that name no version are left out."""
        found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;+]+)", listing.read_text(encoding="utf-8"), re.MULTILINE)
        return cls(python, {normal(n): f"=={v}" for n, v in found if not ELSEWHERE.match(normal(n))})

    def with_changes(self, python: str, **constraints: str | None) -> Self:
        """Return the image of another Python with other constraints, by name with underscores; None removes one."""
        changes = {normal(name): constraint for name, constraint in constraints.items()}
        packages = {name: constraint for name, constraint in (self.packages | changes).items() if constraint}
        return replace(self, python=python, packages=packages)

    def resolve(self, extras: str = "all", platform: str = "linux", only_wheels: bool = False) -> dict[str, str]:
        """Return all that the kit with `extras` needs, by version, in this image. Raises DoesNotFit."""
        command = [
            *uv("pip", "compile"), str(ROOT / "pyproject.toml"), "--quiet", "--no-header", "--no-annotate",
            *(f"--extra={extra}" for extra in extras.split(",")),
            "--python-version", self.python, "--python-platform", platform,
            *(["--only-binary", ":all:"] if only_wheels else []),
            *(["--constraint", "-"] if self.packages else []),
        ]  # fmt: skip
        # The oldest macOS that wheels of bitsandbytes are for.
        environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
        done = subprocess.run(command, input=self.constraints(), capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise DoesNotFit(done.stderr)
        return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE)}

    def constraints(self) -> str:
        """Return a constraints file."""
        return "".join(f"{name}{constraint}\n" for name, constraint in self.packages.items())

    def build(self, folder: Path) -> Path:
        """Return the interpreter of a new environment in `folder` with those packages that the kit touches."""
        needed = self.resolve()
        touched = [f"{n}{self.packages[n]}" for n in sorted({*needed, *JUPYTER} & set(self.packages))]
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreter(self.python), "-m", "venv", "--without-pip", str(folder)], check=True)
        python = folder / "bin" / "python"
        command = [*uv("pip", "install"), "--quiet", "--compile-bytecode", "--python", str(python), "-c", "-", *touched]
        subprocess.run(command, input=self.constraints(), text=True, check=True)
        return python


def kaggle(colab: Image) -> Image:
    """Return Kaggle's image, which is made from Colab's: an older Python, and a few versions of its own."""
    return colab.with_changes(
        "3.12", protobuf="==5.29.5", setuptools="<82", grpcio_tools=">=1.60", ipywidgets="==8.1.5",
        jupyterlab_widgets=None, widgetsnbextension=None,
    )  # fmt: skip


def uv(*arguments: str) -> list[str]:
    """Return the command line of the uv of this environment."""
    return [sys.executable, "-m", "uv", *arguments]


def interpreter(version: str) -> str:
    """Return a Python of that version, on the path or from pyenv. Raises FileNotFoundError if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    raise FileNotFoundError(f"Python {version} is needed for this image: install it (pyenv install {version}).")


def normal(name: str) -> str:
    """Return a package's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(listing: tyro.conf.Positional[Path], python: str = "3.13", build: Path | None = None) -> None:
    """Print what installing the kit would add to the image of `listing`; exit 1 if it does not fit."""
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
