"""Build the site: make what its pages need, gather the pages, run Sphinx, and harden the result.

    python site/build.py

The result is in `site/_build/html/`; `index.html` there opens without a server. Warnings end the build.
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from machinery.gathering import gather
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
MADE, PAGES, HTML = SITE / "_made", SITE / "_build" / "pages", SITE / "_build" / "html"
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


def build() -> int:
    """Build the site, and return Sphinx's exit status."""
    shutil.rmtree(MADE, ignore_errors=True)
    (MADE / "static").mkdir(parents=True)
    for step in STEPS:
        began = time.monotonic()
        step(MADE)
        print(f"{step.__module__}: {time.monotonic() - began:.1f} s", flush=True)
    gather(SITE, MADE, PAGES)
    shutil.rmtree(HTML, ignore_errors=True)
    options = ["--fail-on-warning", "--quiet", "--conf-dir", SITE, "--doctree-dir", SITE / "_build" / "doctrees"]
    if status := sphinx(list(map(str, [*options, "-b", "html", PAGES, HTML]))):
        return status
    slim(HTML)
    return 0


if __name__ == "__main__":
    sys.exit(build())
