"""Make README's pictures of the site: docs/site_page.webp, site_panel.webp and site_dashboard.webp.

Run `make site` and `make demo` before: `python scripts/site_pictures.py` opens in Chromium the landing page that was
built, the panel of a peer of the demo, and the dashboard of the recorded run that is part of the package. Each picture
has less than 200 kB.
"""

import functools
import io
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tyro
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.run_page import write_run_page
from dalle_lib.replay import recorded_run
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.folder import SETTINGS

ROOT = Path(__file__).parent.parent
SITE, DOCS = ROOT / "site" / "_build" / "html", ROOT / "docs"
LANDING = "index.html"
PEER = ROOT / "outputs" / "demo" / "swarm" / "peers" / "you"
PANEL = '<!doctype html><meta charset="utf-8"><main style="padding: 24px; width: 640px">{panel}</main>'
WIDTH, HEIGHT, WAIT_MS = 1200, 800, 60_000
MAX_BYTES, QUALITIES = 200_000, (90, 80, 70, 60, 50)
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine, and yield its address, which ends with a slash."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def opened(browser: Browser, address: str) -> Page:
    """Return a page on a desk's screen, in light colours, when it has loaded all."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(address, timeout=WAIT_MS, wait_until="networkidle")
    return page


def with_charts(page: Page) -> Page:
    """Return a page after it was seen down to its end: charts are drawn where they come into view."""
    for _ in range(40):
        page.mouse.wheel(0, HEIGHT // 2)
        page.wait_for_timeout(100)
    page.wait_for_load_state("networkidle", timeout=WAIT_MS)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    return page


def save(shown: Page | Locator, file: Path, **how: object) -> int:
    """Write what is shown as a WebP of less than MAX_BYTES, and return its bytes. Raises ValueError if none is."""
    picture = Image.open(io.BytesIO(shown.screenshot(timeout=WAIT_MS, **how))).convert("RGB")
    for quality in QUALITIES:
        data = io.BytesIO()
        picture.save(data, "WEBP", quality=quality, method=6)
        if len(data.getvalue()) < MAX_BYTES:
            file.write_bytes(data.getvalue())
            return len(data.getvalue())
    raise ValueError(
        f"expected a picture of less than {MAX_BYTES:,} bytes, but {file.name} has {len(data.getvalue()):,}."
    )


def main(peer: Path = PEER, site: Path = SITE) -> None:
    """Make the three pictures: of a built site, of the panel of the peer in a folder, and of the recorded run."""
    for file, target in (site / LANDING, "make site"), (peer / SETTINGS, "make demo"):
        if not file.exists():
            raise SystemExit(f"expected {file}, but it is not there: run `{target}` first.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = write_run_page(recorded_run(Path(folder) / "run"), Path(folder) / "page")
        panel = Path(folder) / "panel.html"
        panel.write_text(PANEL.format(panel=panel_html(Peer(peer))), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        with served(site) as url:
            made = {"site_page": save(opened(browser, f"{url}{LANDING}"), DOCS / "site_page.webp")}
        shown = opened(browser, panel.as_uri()).locator("main")
        made["site_panel"] = save(shown, DOCS / "site_panel.webp")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": 2 * HEIGHT}
        dashboard = with_charts(opened(browser, run.as_uri()))
        made["site_dashboard"] = save(dashboard, DOCS / "site_dashboard.webp", clip=clip, full_page=True)
        browser.close()
    print("\n".join(f"{name}: {size:,} bytes" for name, size in made.items()))


if __name__ == "__main__":
    tyro.cli(main)
