"""Whether this machine can take part, before anything is started."""

import importlib.util
import os
import platform
import sys
from pathlib import Path

import pandas as pd

from dalle_lib.machine import LOADING, DeviceCheck, free_disk, free_memory, gpus, this_platform
from dalle_lib.run import EMBEDDED_RUNS, RunCard

NEEDED_MEMORY = 3e9
"""Free bytes for the demo: its four peers took 0.4 to 0.6 GB each (proportional set size), the rest is room."""
NEEDED_DISK = 0.5e9


def preflight(run: str = EMBEDDED_RUNS[-1], folder: str | Path = ".", token: str | None = None) -> pd.DataFrame:
    """Return what a peer of `run` needs, what is here, and whether that is enough.

    Of a run on the Hub only its card is downloaded, with `token` if it is private. Nothing is started, but each GPU
    computes something. Raises ValueError if there is no such run, ConnectionError if the Hub cannot be asked.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    size, weights = RunCard.load(run, token).downloads()
    memory, disk = NEEDED_MEMORY + LOADING * weights, NEEDED_DISK + size
    here, free = this_platform(), min(free_disk(folder), free_disk(HF_HUB_CACHE))
    limit = "none" if (left := here.minutes_left()) is None else f"{left:.0f} minutes left for training"
    rows = [
        ("system", "Linux or macOS", platform.system(), platform.system() in ("Linux", "Darwin")),
        ("platform", "any", here.name, True),
        ("time limit", "1 minute", limit, left is None or left >= 1),
        ("processor cores", "2", str(os.cpu_count()), (os.cpu_count() or 0) >= 2),
        ("free memory", _gb(memory), _gb(free_memory()), free_memory() >= memory),
        ("free disk", _gb(disk), _gb(free), free >= disk),
        ("download", "any", _gb(size), True),
        ("hivemind", "installed", *_installed("hivemind")),
        *_gpu_rows(),
    ]
    return pd.DataFrame(rows, columns=["what", "needed", "here", "ok"]).set_index("what")


def _gpu_rows() -> list[tuple[str, str, str, bool]]:
    found = gpus()
    if not found:
        return [("GPU", "not needed", "none", True)]
    return [(f"GPU {gpu.device}", "not needed", f"{gpu.name}, {_gb(gpu.bytes)}, {_state(gpu)}", True) for gpu in found]


def _state(gpu: DeviceCheck) -> str:
    return "computes" if gpu.problem is None else f"not used: {gpu.problem}"


def _installed(module: str) -> tuple[str, bool]:
    found = importlib.util.find_spec(module) is not None
    remedy = "not on Windows: use WSL2" if sys.platform == "win32" else 'missing: pip install "dalle-lib[swarm]"'
    return ("installed" if found else remedy), found


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
