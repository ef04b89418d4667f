import type_checks  # isort: skip  # noqa: F401  (before what it makes check)

import asyncio
import functools
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import settings

from dalle_lib.rehearsal.hub.here import hub_here
from dalle_lib.rehearsal.hub.stand_in import Hub
from dalle_lib.rehearsal.links import Relay
from dalle_lib.run import RunCard

pytest_plugins = ["site_browser"]
DATA = Path(__file__).parent / "data"
NUMBERS = itertools.count()
LONGEST = {
    *("test_long_rehearsal", "test_notebooks", "test_one_liar", "test_rehearse", "test_swarm"),
    *("test_benchmarks", "test_generate", "test_inference", "test_measurement", "test_published", "test_reversible"),
    *("test_site_calculator", "test_site_draw", "test_site_pages", "test_tutorial"),
}  # fmt: skip
"""Files whose tests come first, so that no process is left with a long one at the end."""
FOUND_BY = {
    "chaos": ["mark.chaos"], "long": ["mark.long"], "images": ["mark.images"], "site": ["mark.site"],
    "peers": ["mark.peers", "swarm_folder", "mark.chaos"],
}  # fmt: skip
"""Texts by which the Makefile finds the files that hold tests with a marker."""

settings.register_profile("same everywhere", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("same everywhere")

# What a shell starts in the background ignores Ctrl+C, and so would the programs that tests start and press it in.
signal.signal(signal.SIGINT, signal.default_int_handler)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the running processes whose command line names something in `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def living(processes: list[psutil.Process], timeout_s: float = 30) -> list[psutil.Process]:
    """Return those of `processes` that are still alive after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (alive := [p for p in processes if _is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def relay() -> Iterator[Relay]:
    """The network between peers that are at the ends of its links."""
    with Relay() as running:
        yield running


@pytest.fixture
def swarm_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for peers. A test that leaves a process of it behind fails, and the process is ended."""
    yield tmp_path
    left = living(processes_of(tmp_path), timeout_s=60)  # a peer that has told why it ends takes a moment
    commands = [process.info["cmdline"] for process in left]
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    assert not left, f"processes outlived the test: {commands}"


@pytest.fixture(scope="session", autouse=True)
def no_state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Peers that several tests share are not listed among the user's, either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / "shared"))
        yield


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers of a test are listed and count their traffic in a folder of its own, which is made by the first."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / str(next(NUMBERS))))


@pytest.fixture
def no_event_loop() -> None:
    """hivemind's futures would make an event loop of their own and leave it open."""
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def mini() -> RunCard:
    return RunCard.load("emoji-mini")


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    """A stand-in for the Hub on this machine, for this process and its children, none of which has a Hub token."""
    with hub_here(tmp_path) as server:
        yield server


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    """Return whether two modules have the same tensors under the same names."""
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(name == other and torch.equal(tensor, copy) for (name, tensor), (other, copy) in pairs)


@pytest.fixture(params=[64, 16], ids=["long strips", "short strips"])
def strips(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of small pictures attend in one strip, or, as those of large pictures do, in several."""
    monkeypatch.setattr("dalle_lib.model.attention.STRIP", request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-try", action="store_true", help="run a failed test with real peers once more")
    parser.addoption("--built-site", action="store_true", help="test the web page that is built instead of building it")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why the first try of each test failed that was run once more; pytest itself only names these tests."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.line(text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start real peers, which may miss each other on a busy machine; begin with the longest.

    Among those of `make chaos`, one whose peers mostly wait follows two whose peers train a model: that is how three
    processes share two cores.
    """
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    for item in items:
        if "swarm_folder" in item.fixturenames or item.get_closest_marker("chaos"):
            item.add_marker("peers")
        if config.getoption("second_try") and item.get_closest_marker("peers"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        _require_named(item)
    chaos = [item for item in items if item.get_closest_marker("chaos")]
    mixed = [item for item in chaos if "OneHotSwarm" not in _source(item.path)]
    for number, item in enumerate(item for item in chaos if item not in mixed):
        mixed.insert(3 * number + 2, item)
    items[:] = [item for item in items if item not in mixed] + mixed


def _require_named(item: pytest.Item) -> None:
    """Fail unless the Makefile, which looks for texts in files, finds the file of a test with a marker."""
    for marker, texts in FOUND_BY.items():
        if item.get_closest_marker(marker) and not any(text in _source(item.path) for text in texts):
            raise pytest.UsageError(
                f"{item.nodeid} has the marker {marker!r}, but its file holds none of {', '.join(texts)}, by which the "
                f"Makefile finds the tests with that marker: write one of them there, or change both."
            )


@functools.cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")
