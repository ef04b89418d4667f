"""Whether this machine can take part, before anything is started."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path

import pandas as pd
import torch

NEEDED_MEMORY_GB = 3.0
"""Free memory for the demo: its four peers took 0.4 to 0.6 GB each (proportional set size), the rest is room."""
NEEDED_DISK_GB = 0.5


def preflight(folder: str | Path = ".") -> pd.DataFrame:
    """Return what a peer needs, what is here, and whether that is enough. Starts and changes nothing."""
    memory_gb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9 if hasattr(os, "sysconf") else 0.0
    disk_gb = shutil.disk_usage(folder).free / 1e9
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    rows = [
        ("system", "Linux or macOS", platform.system(), platform.system() in ("Linux", "Darwin")),
        ("processor cores", "2", str(os.cpu_count()), (os.cpu_count() or 0) >= 2),
        ("free memory", f"{NEEDED_MEMORY_GB:.0f} GB", f"{memory_gb:.1f} GB", memory_gb >= NEEDED_MEMORY_GB),
        ("free disk", f"{NEEDED_DISK_GB} GB", f"{disk_gb:.1f} GB", disk_gb >= NEEDED_DISK_GB),
        ("hivemind", "installed", *_installed("hivemind")),
        ("GPU", "not needed", gpu, True),
    ]
    return pd.DataFrame(rows, columns=["what", "needed", "here", "ok"]).set_index("what")


def _installed(module: str) -> tuple[str, bool]:
    found = importlib.util.find_spec(module) is not None
    return ("installed" if found else 'missing: pip install "dalle-lib[swarm]"'), found
