"""Checks of whether this machine can take part in a run, as far as they need nothing to be started."""

import importlib.util
import multiprocessing
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import pandas as pd
import torch

from dalle_lib.machine import LOADING, DeviceCheck, compute_problem, free_disk, free_memory, gpus, working_gpus
from dalle_lib.one_line import in_one_line
from dalle_lib.planning import Work
from dalle_lib.platforms import this_platform
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.state import RunClosed, require_open
from dalle_lib.swarm.peer.computing.room import ram_of_workers
from dalle_lib.swarm.process.settings import FIRST_GPU, PeerSettings
from dalle_lib.troubles import trouble_in

NEEDED_MEMORY = 3e9
"""Free bytes of RAM that the demo needs. Its four peers took 0.4 to 0.6 GB each (proportional set size)."""
NEEDED_DISK = 0.5e9
WIDTH = len("processor cores")
"""Letters of the longest subject of a check."""
_WSL = "on Windows use WSL2: https://learn.microsoft.com/windows/wsl/install"
_TORCH = "install the torch that fits this machine: https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Check:
    """One thing that a peer needs, and whether this machine has it."""

    what: str
    needed: str
    here: str
    ok: bool
    """Whether this machine can take part as far as this check goes."""
    remedy: str = ""
    """What to do; advice where `ok` is true."""
    figures: dict[str, object] | None = None
    """The numbers in `here`, for programs, where it has any that matter."""


def require(what: str, needed: str, here: str, ok: bool, remedy: str) -> Check:
    """Return a check that names its remedy only where it fails."""
    return Check(what, needed, here, ok, "" if ok else remedy)


def preflight(run: str = EMBEDDED_RUNS[-1], folder: str | Path = ".", token: str | None = None) -> pd.DataFrame:
    """Return a table of what a peer of `run` needs (`needed`), what is here (`here`), whether that is enough (`ok`).

    Each row is a check, by its subject; `remedy` says what to do where it fails. A card on the Hub is downloaded, with
    the Hub token `token` if the run is private. Nothing is started, but each GPU computes something.
    """
    return table(preflight_checks(PeerSettings(run=run), folder, token))


def preflight_checks(settings: PeerSettings, folder: str | Path, token: str | None) -> Iterator[Check]:
    """Yield the rows of `preflight` for a peer with these settings, each as soon as it is checked."""
    yield from _software()
    yield from _machine()
    yield from _run(settings, folder, token)
    yield from _gpus()


def table(checks: Iterable[Check]) -> pd.DataFrame:
    """Return checks as a table: a row for each, by its subject `what`; `figures` are there if one has any."""
    return pd.DataFrame([asdict(check) for check in checks]).set_index("what").dropna(axis="columns", how="all")


def in_words(check: Check) -> str:
    """Return a check as a line of text, its remedy as another, and where it failed a link to what that means."""
    mark = "FAILED" if not check.ok else "note" if check.remedy else "ok"
    needed = "" if check.ok else f"; needed: {check.needed}"
    below = f"\n{'':{WIDTH + 8}}  → "
    told = f"{mark:6}  {check.what:{WIDTH}}  {check.here}{needed}" + (f"{below}{check.remedy}" if check.remedy else "")
    trouble = None if check.ok else trouble_in(told)
    return told if trouble is None else f"{told}{below}{trouble.link}"


def _software() -> Iterator[Check]:
    yield require("system", "Linux or macOS", platform.system(), platform.system() in ("Linux", "Darwin"), _WSL)
    wanted = metadata.metadata("dalle-lib")["Requires-Python"]
    new_enough = sys.version_info >= tuple(map(int, re.search(r">=(\d+)\.(\d+)", wanted).groups()))
    yield require("Python", wanted, platform.python_version(), new_enough, f"make an environment with Python {wanted}")
    default, *others = multiprocessing.get_all_start_methods()
    can_fork = "fork" in (default, *others)
    method = f"fork, which a peer asks for; Python's own default is {default}" if can_fork else default
    yield require("start method", "fork", method, can_fork, _WSL)
    wrong = compute_problem(torch.device("cpu"))
    yield require("torch", "computes", f"{torch.__version__}, {wrong or 'computes'}", wrong is None, _TORCH)
    hivemind = importlib.util.find_spec("hivemind") is not None
    install = _WSL if sys.platform == "win32" else 'pip install "dalle-lib[swarm]"'
    yield require("hivemind", "installed", "installed" if hivemind else "missing", hivemind, install)


def _machine() -> Iterator[Check]:
    here, cores = this_platform(), os.cpu_count() or 0
    left = here.minutes_left()
    limit = "none" if left is None else f"{left:.0f} minutes left for training"
    yield Check("platform", "any", here.name, True)
    yield require("time limit", "1 minute", limit, left is None or left >= 1, f"start a new session on {here.name}")
    yield require("processor cores", "2", str(cores), cores >= 2, "use a machine with two")


def _run(settings: PeerSettings, folder: str | Path, token: str | None) -> Iterator[Check]:
    """Yield whether the run can be read, and whether it fits on this machine together with its peers."""
    from huggingface_hub.constants import HF_HUB_CACHE

    run, card, (size, weights, download) = settings.run, None, (0, 0, "not known")
    try:
        card = RunCard.load(run, token)
        yield _run_is_open(card)
        size, weights, download = _downloads(card)
    except (ValueError, ConnectionError) as error:
        yield Check("run", "can be read", f"{run} cannot be read", False, in_one_line(error))
    yield Check("download", "any", download, True)
    disk, place = NEEDED_DISK + size, min(folder, HF_HUB_CACHE, key=free_disk)
    yield _memory(NEEDED_MEMORY + LOADING * weights, settings, card)
    room = f"free some space in {place}"
    yield require("free disk", gigabytes(disk), gigabytes(free_disk(place)), free_disk(place) >= disk, room)
    if card is not None:
        yield _clip(card)


def _memory(needed: float, settings: PeerSettings, card: RunCard | None) -> Check:
    """Return whether a peer has enough memory, and say if its workers on further devices need more."""
    what, free, more = "free memory", free_memory(), "close other notebooks and programs, or use a machine with more"
    workers = len(devices_here(settings)) - 1 if settings.role == "trainer" else 0
    in_all = needed + (ram_of_workers(Work.of(card).parameters, workers) if card is not None and workers else 0)
    if needed <= free < in_all:
        here = f"{gigabytes(free)}, but {gigabytes(in_all)} are needed for all {workers + 1} devices"
        return Check(what, gigabytes(needed), here, True, f"{more}, or compute on one GPU: --device first")
    return require(what, gigabytes(needed), gigabytes(free), free >= needed, more)


def devices_here(settings: PeerSettings) -> list[str]:
    """Return the devices on which a peer with these settings computes, as torch names them."""
    found = settings.devices or working_gpus() or ["cpu"]
    return found[:1] if settings.device == FIRST_GPU else found


def _run_is_open(card: RunCard) -> Check:
    """Return whether the run, whose card could be read, takes peers now."""
    try:
        require_open(card)
    except RunClosed as error:
        return Check("run", "open", f"{card.name} is {card.state}", False, in_one_line(error))
    return Check("run", "can be read", card.name, True)


def _clip(card: RunCard) -> Check:
    """Return whether the run's CLIP can be had, with which pictures are drawn; training needs none."""
    what, needed = "CLIP", "to draw alone"
    if importlib.util.find_spec("transformers") is None:
        return Check(what, needed, "transformers is missing", True, 'to draw, pip install "dalle-lib[inference]"')
    try:
        is_there = card.has_clip()
    except ConnectionError as error:
        return Check(what, needed, "not here", True, f"training needs none; to draw: {in_one_line(error)}")
    if is_there:
        return Check(what, needed, card.clip, True)
    return Check(what, needed, f"{card.clip} is not there", True, "training needs none; to draw, tell the organiser")


def _downloads(card: RunCard) -> tuple[int, int, str]:
    """Return the two sizes of `card.downloads`, and the bytes to download in words."""
    try:
        size, weights = card.downloads()
    except ConnectionError as error:  # what the cache holds may be enough
        return 0, 0, f"not known: {in_one_line(error)}"
    return size, weights, gigabytes(size)


def _gpus() -> Iterator[Check]:
    if found := gpus():
        yield from map(_gpu, found)
    elif shutil.which("nvidia-smi") is None:
        yield Check("GPU", "not needed", "none", True)
    else:
        yield Check("GPU", "not needed", "none that torch sees, though there is nvidia-smi", True, _TORCH)


def _gpu(gpu: DeviceCheck) -> Check:
    about = f"{gpu.name}, {gigabytes(gpu.bytes)}"
    if gpu.problem is None:
        return Check(f"GPU {gpu.device}", "not needed", f"{about}, computes", True)
    return Check(f"GPU {gpu.device}", "not needed", f"{about}, not used: {gpu.problem}", True, _TORCH)


def gigabytes(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:.1f} GB"
