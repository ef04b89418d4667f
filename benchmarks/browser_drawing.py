"""How long does the page that draws take for 8 candidates, in Chromium, on one thread?

Prints JSON: seconds of a drawing from the click to the ordered pictures (figure), against 3 s, which is aimed at
(reference), and their ratio. The fastest of several drawings counts; the first one, in which the browser still compiles
the runtime, is told beside it, with the parts of the fastest, the seconds of loading from this machine, and how many
seconds of a processor the browser took for the fastest: beside other programs, it waits for its core. The site must be
built (`make site`), and Chromium installed.
"""

import functools
import json
import os
import platform
import shutil
import threading
import time
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import tyro
from playwright.sync_api import Page, sync_playwright

HTML = Path(__file__).parent.parent / "site" / "_build" / "html"
AIM_S = 3.0
WAIT_MS = 600_000
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
DRAW = """async ([prompt, candidates]) => {
  const settings = { prompt, candidates, seed: "7", guidance: 1.5, topK: 256, topP: 1, temperature: 1 };
  globalThis.drawer ??= new Worker(new URL("draw_worker.js", dalle.drawing.base));
  let started = performance.now(), loading = 0;
  return await new Promise((done, fail) => {
    drawer.onmessage = ({ data }) => {
      if (data.error) fail(new Error(data.error));
      if (data.ready) [loading, started] = [(performance.now() - started) / 1000, performance.now()];
      if (data.choices) done({ loading, whole: (performance.now() - started) / 1000, parts: data.seconds });
    };
    drawer.postMessage(settings);
  });
}"""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to time."""

    prompt: str = "penguin on a yellow background"
    candidates: int = 8
    """Pictures to draw."""
    repeats: int = 6
    """Drawings on the same page; the fastest counts."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of each request."""

    def log_message(self, *_: object) -> None:
        return


def processor_s() -> float:
    """Return the seconds of a processor that the programs started from here have taken, the browser's among them."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def drawings(page: Page, benchmark: Benchmark) -> list[dict]:
    """Return what each drawing took."""
    found = []
    for _ in range(benchmark.repeats):
        before = processor_s()
        told = page.evaluate(DRAW, [benchmark.prompt, benchmark.candidates])
        found.append(told | {"processor": processor_s() - before})
    return found


def main(benchmark: Benchmark) -> None:
    """Time the drawings, and print the comparison."""
    if not (HTML / "draw.html").exists():
        raise SystemExit(f"expected a built site in {HTML}: run make site first")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"http://127.0.0.1:{server.server_port}/draw.html")
        found, version = drawings(page, benchmark), browser.version
        browser.close()
    server.shutdown()
    fastest = min(found, key=lambda told: told["whole"])
    report = {
        "figure": fastest["whole"],
        "reference": AIM_S,
        "ratio": fastest["whole"] / AIM_S,
        "first": found[0]["whole"],
        "parts": fastest["parts"],
        "processor": min(told["processor"] for told in found),
        "loading": found[0]["loading"],
        "candidates": benchmark.candidates,
        "load": os.getloadavg()[0],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Chromium {version}",
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
