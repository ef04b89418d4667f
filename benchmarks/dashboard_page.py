"""How long does the dashboard page of a run take until charts and tables are drawn?

Opens the page that `dalle_lib.dashboard.run_page` writes of a monitor's folder in headless Chromium, in a window so
tall that every chart is in view, several times from the start. `benchmarks/simulated_run.py` makes the folder; where it
is missing, it is made first. Prints JSON: the median seconds from the first request until all is drawn (figure) against
the aim (reference: 2 s, or 4 s for a crowd of thousands), with the bytes of all that was loaded, against 3 MB, and the
seconds for which all of Chromium's processes computed: on a busy machine these tell what the page costs.
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tyro
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from simulated_run import Simulation, simulate

from dalle_lib.dashboard.run_page import write_run_page
from dalle_lib.run.newest import STATUS

AIM_S, AIM_CROWD_S, MAX_BYTES = 2.0, 4.0, 3_000_000
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
DRAWN = """() => {
  const charts = [...document.querySelectorAll(".dalle-figure")].filter((figure) => !figure.hidden);
  const drawn = charts.filter((figure) => figure.querySelector(".dalle-drawn svg"));
  const tables = [...document.querySelectorAll("table")].filter((table) => table.querySelector("tbody tr"));
  return charts.length > 0 && drawn.length === charts.length && tables.length > 0;
}"""
"""Whether every chart that the page shows is drawn, and a table has rows."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is opened."""

    folder: Path = Path("outputs/simulated")
    """A monitor's folder."""
    crowd: int = 0
    """Peers that join the simulated run besides, if it is made here; from 1,000 on, the aim is that for crowds."""
    repeats: int = 5
    width: int = 1280


def opened(browser: Browser, page: Path, width: int) -> dict[str, float]:
    """Open a page with nothing in a cache, and return seconds until all is drawn, and the bytes that were loaded."""
    context = browser.new_context(viewport={"width": width, "height": 12_000})
    tab, loaded = context.new_page(), []
    tab.on("requestfinished", lambda request: loaded.append(Path(unquote(urlsplit(request.url).path))))
    computed, started = computed_s(browser), time.perf_counter()
    tab.goto(page.resolve().as_uri(), wait_until="commit")
    tab.wait_for_function(DRAWN, polling=20, timeout=300_000)
    seconds = time.perf_counter() - started
    computed, charts = computed_s(browser) - computed, tab.locator(".dalle-drawn svg").count()
    context.close()
    return {
        "seconds": seconds,
        "computed": computed,
        "charts": charts,
        "bytes": sum(file.stat().st_size for file in set(loaded) if file.is_file()),
    }


def computed_s(browser: Browser) -> float:
    """Return the seconds for which Chromium's processes, those that are there now, have computed."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(process["cpuTime"] for process in processes)


def measure(benchmark: Benchmark) -> dict:
    """Return seconds and bytes."""
    if not (benchmark.folder / STATUS).exists():
        simulate(Simulation(out=benchmark.folder, crowd=benchmark.crowd))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = write_run_page(benchmark.folder, Path(folder))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        opened(browser, page, benchmark.width)  # the first one also starts Chromium's own processes
        found = [opened(browser, page, benchmark.width) for _ in range(benchmark.repeats)]
        browser.close()
    return {
        **{name: [round(each[name], 2) for each in found] for name in ("seconds", "computed")},
        "charts": found[0]["charts"],
        "loaded_bytes": max(each["bytes"] for each in found),
    }


def main(benchmark: Benchmark) -> None:
    """Open the page, and print the figures."""
    found = measure(benchmark)
    seconds, aim = statistics.median(found["seconds"]), AIM_CROWD_S if benchmark.crowd >= 1000 else AIM_S
    told = {
        "figure": seconds, "reference": aim, "ratio": round(seconds / aim, 3),
        "machine": f"{platform.machine()}, {platform.system()}", **found, "max_bytes": MAX_BYTES,
    }  # fmt: skip
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
