"""A run's page in a browser: served here with what a monitor tells, or opened as a file."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from site_browser import Seen, serve, visited
from told_runs import history, status, write_told

from dalle_lib.dashboard.run_page import write_run_page

SHOWN = """() => {
  const head = document.querySelector(".dalle-head"), age = head && head.querySelector(".dalle-age").textContent;
  const isTold = !head || head.querySelector(".dalle-warning") || /wrote|snapshot/.test(age);
  return document.querySelector(".dalle-chooser") && isTold && !document.querySelector("[aria-busy=true]");
}"""
"""Whether the page shows what was told, or why it cannot."""


@dataclass
class RunPage:
    """A page that is served, and beside it, in `run/`, what the monitor of a run tells."""

    folder: Path
    url: str
    browser: object
    opened: list[Seen] = field(default_factory=list)

    def tell(self, told: object = None, went: object = None, **files: object) -> None:
        """Write what the monitor tells: of `files`, run.json is named `run`."""
        write_told(self.folder / "run", told, went)
        for name, value in files.items():
            (self.folder / "run" / f"{name}.json").write_text(json.dumps(value))

    def visit(self, address: str = "index.html?run=./run/", **options: object) -> Seen:
        """Open the page in a context of its own, and wait until it shows something."""
        seen = visited(self.browser, self.url, address, **options)
        self.opened.append(seen)
        seen.page.set_default_timeout(20_000)
        seen.page.wait_for_function(SHOWN)
        return seen

    def visit_told(self, told: object = None, went: object = None, **options: object) -> Seen:
        """Open the page of what a monitor tells."""
        self.tell(told, went)
        return self.visit(**options)

    @staticmethod
    def columns(seen: Seen, caption: str) -> Callable[[int], list[str]]:
        """Return a function that gives the texts of a column of a table, by its place."""
        rows = seen.page.locator(f"table:has(caption:text-is('{caption}')) tbody tr")
        return lambda place: [row.locator("th, td").nth(place).inner_text() for row in rows.all()]

    def as_file(self, **told: object) -> Path:
        """Return a page that holds a status, with other values of some fields, to open as a file."""
        return write_run_page(write_told(self.folder / "told", status(**told), history()), self.folder / "file")


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page, written once."""
    folder = tmp_path_factory.mktemp("page")
    write_run_page(write_told(tmp_path_factory.mktemp("monitor")), folder)
    return folder


@pytest.fixture
def run_page(page_folder: Path, chromium: object) -> Iterator[RunPage]:
    """A page whose run is told anew by each test."""
    with serve(page_folder) as url:
        page = RunPage(page_folder, url, chromium)
        yield page
        for seen in page.opened:
            seen.page.context.close()
