"""Build the site: make what its pages need, gather the pages, run Sphinx, and harden the result.

    python site/build.py

The result is in `site/_build/html/`; `index.html` there opens without a server. Warnings end the build. The folder is
there only whole: what was built before stays in it until all is done.
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from machinery.gathering import gather, put_in_place
from machinery.slimming import slim
from making import (
    calculator,
    commands,
    dashboard,
    documents,
    draw,
    drawings,
    figures,
    gallery,
    glossary,
    notebooks,
    recorded,
    reference,
    tables,
)
from sphinx.cmd.build import main as sphinx

SITE = Path(__file__).parent
MADE, BUILT = SITE / "_made", SITE / "_build"
PAGES, BEGUN, HTML = BUILT / "pages", BUILT / "begun", BUILT / "html"
STEPS: list[Callable[[Path], None]] = [
    documents.make,
    glossary.make,
    notebooks.make,
    reference.make,
    commands.make,
    figures.make,
    tables.make,
    drawings.make,
    recorded.make,
    gallery.make,
    dashboard.make,
    calculator.make,
    draw.make,
]


def main() -> None:
    """Build the site and exit with Sphinx's status, unless another build is at it."""
    BUILT.mkdir(exist_ok=True)
    try:
        with FileLock(BUILT / "lock", timeout=0):
            sys.exit(build())
    except Timeout:
        sys.exit(f"build: expected one build at a time, but another one writes to {BUILT}: wait until it has ended.")


def build() -> int:
    """Build the site, and return Sphinx's exit status."""
    shutil.rmtree(MADE, ignore_errors=True)
    (MADE / "static").mkdir(parents=True)
    for step in STEPS:
        began = time.monotonic()
        step(MADE)
        print(f"{step.__module__}: {time.monotonic() - began:.1f} s", flush=True)
    gather(SITE, MADE, PAGES)
    shutil.rmtree(BEGUN, ignore_errors=True)
    options = ["--fail-on-warning", "--quiet", "--conf-dir", SITE, "--doctree-dir", BUILT / "doctrees"]
    if status := sphinx(list(map(str, [*options, "-b", "html", PAGES, BEGUN]))):
        return status
    slim(BEGUN)
    put_in_place(BEGUN, HTML)
    return 0


if __name__ == "__main__":
    main()
