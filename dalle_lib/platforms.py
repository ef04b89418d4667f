"""Where this program runs: Colab, Kaggle or your own machine; its time limit, its Hub token. Loads no torch."""

import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

TOKEN = "HF_TOKEN"
"""The name under which platforms keep a volunteer's Hub token (a Hugging Face token)."""
KAGGLE_INPUT, MAX_DEPTH = Path("/kaggle/input"), 4
"""Where Kaggle shows the outputs of earlier versions that were added to a notebook, and in folders how deep at most."""
WIND_UP_MINUTES = 20.0
"""Minutes of a session that are kept for what follows training: leaving cleanly, pictures, the summary."""


@dataclass(frozen=True)
class Platform:
    """Where this program runs."""

    name: str
    """Colab, Kaggle, or "your own machine"."""
    session_hours: float | None = None
    """Hours after which the platform ends a session; None for no limit."""
    is_unattended: bool = False
    """Whether nobody watches the notebook, as in Kaggle's "Save & Run All"."""

    def minutes_left(self) -> float | None:
        """Return how many minutes a peer may train, so that WIND_UP_MINUTES of the session are left; None for no limit.

        The session's age is that of the server that started this kernel, because kernels can be restarted.
        """
        if self.session_hours is None:
            return None
        server = psutil.Process().parent() or psutil.Process()
        age_minutes = (time.time() - server.create_time()) / 60
        return max(0.0, 60 * self.session_hours - age_minutes - WIND_UP_MINUTES)


def this_platform(environ: Mapping[str, str] = os.environ) -> Platform:
    """Return the platform on which this process runs, by the environment variables that the platform sets."""
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:
        return Platform("Kaggle", session_hours=12.0, is_unattended=environ["KAGGLE_KERNEL_RUN_TYPE"] == "Batch")
    if "COLAB_RELEASE_TAG" in environ:  # on Kaggle too, whose image is made from Colab's
        return Platform("Colab", session_hours=12.0)
    return Platform("your own machine")


def training_minutes(wanted: float) -> float:
    """Return `wanted`, or fewer minutes where the platform would end the session before."""
    left = this_platform().minutes_left()
    return wanted if left is None else min(wanted, left)


def bring_back(folder: str | Path, added: Path = KAGGLE_INPUT) -> Path | None:
    """Copy a folder from the outputs that were added to a Kaggle notebook to where it was, and return what was copied.

    `folder` is a relative path, the same as in the version that kept it; of several copies the newest is taken. None,
    and nothing is copied, where the folder is here already, or in none of these outputs.
    """
    folder = Path(folder)
    if folder.exists() or folder.is_absolute() or not added.is_dir():
        return None
    copies = [each for depth in range(1, MAX_DEPTH + 1) for each in added.glob(f"{'*/' * depth}{folder}")]
    if not copies:
        return None
    newest = max(copies, key=lambda copy: copy.stat().st_mtime)
    shutil.copytree(newest, folder)
    return newest


def hub_token() -> str | None:
    """Return the Hub token of the platform's secrets, or the one stored on this machine, or None. Nobody is asked."""
    token = _kaggle_secret() if this_platform().name == "Kaggle" else None
    if token is None:
        from huggingface_hub import get_token  # on Colab it reads the secrets, too

        token = get_token()
    return token


def _kaggle_secret() -> str | None:
    try:
        from kaggle_secrets import UserSecretsClient

        return UserSecretsClient().get_secret(TOKEN) or None
    except Exception as error:  # Kaggle's client raises errors of its own, which differ from image to image
        logger.info("Kaggle's secrets hold no %s: %s", TOKEN, error)
        return None


def typed() -> str:
    """Return how `dalle-lib` is typed here: by its name where that is found, else by its path in this environment."""
    if shutil.which("dalle-lib") is not None:
        return "dalle-lib"
    place = Path(sys.executable).parent
    folder = place.relative_to(Path.cwd()) if Path.cwd() in place.parents else place
    if (place / "dalle-lib").exists():
        return shlex.quote(str(folder / "dalle-lib"))
    return f"{shlex.quote(str(folder / Path(sys.executable).name))} -m dalle_lib"
