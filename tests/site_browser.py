"""The built site in a browser: fixtures for tests with the mark `site`, in use everywhere by tests/conftest.py.

`visit("glossary.html", width=390, dark=True)` opens a page in a fresh Chromium context and returns what was `Seen`
there: the page to act on, what went wrong, and what was loaded. The site is built once; `--built-site` takes the one
that is there.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checkout import ROOT
from filelock import FileLock
from ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

HTML = ROOT / "site" / "_build" / "html"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Seen:
    """A page in a browser, and what happened while it was there."""

    page: "Page"
    problems: list[str] = field(default_factory=list)
    """Errors on the console, failed requests, and requests to anything but this site."""
    loaded: dict[str, "Response"] = field(default_factory=dict)
    """What the page loaded, by address."""


@pytest.fixture(scope="session")
def site_html(request: pytest.FixtureRequest) -> Path:
    """The folder of the built site. Processes of one test run build it once."""
    if request.config.getoption("built_site"):
        assert (HTML / "index.html").exists(), "expected a built site: run make site, or leave --built-site out"
        return HTML
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    done = Path(tempfile.gettempdir()) / f"dalle-site-{run}"
    with FileLock(f"{done}.lock"):
        if not done.exists():
            build = [sys.executable, str(ROOT / "site" / "build.py")]
            built = subprocess.run(build, capture_output=True, text=True, timeout=800)
            assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-6000:]
            done.touch()
    return HTML


@pytest.fixture(scope="session")
def site_url(site_html: Path) -> Iterator[str]:
    """The address of the built site, served on this machine; it ends with a slash."""
    with serve(site_html) as url:
        yield url


class serve:  # noqa: N801 (reads as a verb)
    """Serves a folder on a port of this machine while the block runs."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(_Quiet, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def send_head(self) -> object:
        """Send each file whole: its time, in seconds, does not tell that a test has changed it since."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """A Chromium without a window: the system's, or Playwright's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: "Browser", site_url: str) -> Iterator[Callable[..., Seen]]:
    """A function that opens a page of the site, or a whole address, in a context that is closed at the end."""
    opened = []

    def open_page(address: str, **options: object) -> Seen:
        seen = visited(chromium, site_url, address, **options)
        opened.append(seen.page.context)
        return seen

    yield open_page
    for context in opened:
        context.close()


def visited(
    browser: "Browser", site: str, address: str, *, width: int = 1280, dark: bool = False, scripts: bool = True
) -> Seen:
    """Open a page of `site`, or a whole `address`, in a new context, and wait until it has loaded."""
    mode = "dark" if dark else "light"
    size = {"width": width, "height": 844 if width < 600 else 900}
    context = browser.new_context(viewport=size, color_scheme=mode, java_script_enabled=scripts)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen = Seen(context.new_page())
    whole = address if "://" in address else site + address
    own = site if whole.startswith("http") else "file:"
    seen.page.on("console", lambda message: _hear(seen, message))
    seen.page.on("pageerror", lambda error: seen.problems.append(f"error: {error}"))
    seen.page.on("request", lambda request: _watch(seen, request, own))
    seen.page.on("requestfailed", lambda request: _fail(seen, request))
    seen.page.on("response", lambda response: _keep(seen, response))
    seen.page.goto(whole, wait_until="load")
    return seen


def _hear(seen: Seen, message: "ConsoleMessage") -> None:
    if message.type in ("error", "warning"):
        seen.problems.append(f"{message.type}: {message.text}")


def _watch(seen: Seen, request: "Request", own: str) -> None:
    if not request.url.startswith((own, "data:", "blob:")):
        seen.problems.append(f"elsewhere: {request.url}")


def _fail(seen: Seen, request: "Request") -> None:
    if request.failure != "net::ERR_ABORTED":  # what a page still fetched when one went on to the next
        seen.problems.append(f"failed: {request.url} {request.failure}")


def _keep(seen: Seen, response: "Response") -> None:
    seen.loaded[response.url] = response
    if response.status >= 400:
        seen.problems.append(f"{response.status}: {response.url}")
