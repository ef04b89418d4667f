"""What this machine is and has: its platform and time limit, memory, disk, secrets, and GPUs that really compute."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

logger = logging.getLogger(__name__)

TOKEN = "HF_TOKEN"
"""The name under which platforms keep a volunteer's Hugging Face token."""
WIND_UP_MINUTES = 20.0
"""Left of a session for what comes after training: leaving cleanly, pictures, the summary."""
_CGROUP = Path("/sys/fs/cgroup")
LOADING = 2
"""Bytes of RAM for each byte of a model's files: while it is read, its tensors exist twice."""


class NotEnoughRoom(RuntimeError):
    """A download would not fit into this machine's disk or memory."""


@dataclass(frozen=True)
class Platform:
    """Where this program runs."""

    name: str
    """Colab, Kaggle, or "your own machine"."""
    session_hours: float | None = None
    """When the platform ends a session at the latest; None for no limit."""
    is_unattended: bool = False
    """Whether nobody looks: Kaggle's "Save & Run All"."""

    def minutes_left(self) -> float | None:
        """Return how long a peer may train before the platform ends the session, with time left to wind up.

        A session is as old as the server that started this kernel, which outlives restarts of the kernel.
        """
        if self.session_hours is None:
            return None
        server = psutil.Process().parent() or psutil.Process()
        age_minutes = (time.time() - server.create_time()) / 60
        return max(0.0, 60 * self.session_hours - age_minutes - WIND_UP_MINUTES)


def this_platform(environ: Mapping[str, str] = os.environ) -> Platform:
    """Return the platform that this process runs on, by the variables that it sets."""
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:
        return Platform("Kaggle", session_hours=12.0, is_unattended=environ["KAGGLE_KERNEL_RUN_TYPE"] == "Batch")
    if "COLAB_RELEASE_TAG" in environ:  # on Kaggle too, whose image is made from Colab's
        return Platform("Colab", session_hours=12.0)
    return Platform("your own machine")


def training_minutes(wanted: float) -> float:
    """Return `wanted`, or less where the platform would end the session before."""
    left = this_platform().minutes_left()
    return wanted if left is None else min(wanted, left)


def hub_token() -> str | None:
    """Return the Hugging Face token of the platform's secrets, or the one that is stored here; never asks for one."""
    token = _kaggle_secret() if this_platform().name == "Kaggle" else None
    if token is None:
        from huggingface_hub import get_token  # on Colab it looks into the secrets, too

        token = get_token()
    return token


def _kaggle_secret() -> str | None:
    try:
        from kaggle_secrets import UserSecretsClient

        return UserSecretsClient().get_secret(TOKEN) or None
    except Exception as error:  # Kaggle's client raises errors of its own, which differ from image to image
        logger.info("no secret %s among Kaggle's: %s", TOKEN, error)
        return None


@dataclass(frozen=True)
class DeviceCheck:
    """One GPU, and whether it computes."""

    device: str
    """As torch names it: cuda:0."""
    name: str
    bytes: int
    problem: str | None
    """What went wrong when it multiplied two matrices; None if nothing did."""


def gpus() -> list[DeviceCheck]:
    """Return this machine's GPUs, each after it has really computed something."""
    return [check_gpu(f"cuda:{index}") for index in range(torch.cuda.device_count())]


def working_gpus() -> list[str]:
    """Return the GPUs that compute, as torch names them."""
    return [gpu.device for gpu in gpus() if gpu.problem is None]


def check_gpu(device: str) -> DeviceCheck:
    """Return what a GPU is, and whether a matrix product on it is right, forward and backward, in its own 16 bits."""
    try:
        properties = torch.cuda.get_device_properties(device)
        name, size = properties.name, properties.total_memory
    except (RuntimeError, AssertionError) as error:
        return DeviceCheck(device, "unknown", 0, _in_one_line(error))
    try:
        return DeviceCheck(device, name, size, compute_problem(torch.device(device)))
    except RuntimeError as error:
        return DeviceCheck(device, name, size, _in_one_line(error))


def compute_problem(device: torch.device) -> str | None:
    """Return what is wrong with a small matrix product and its gradient on `device`, or None."""
    left = torch.arange(-32, 32, dtype=torch.float32).reshape(8, 8)
    weight = left.T.flip(0).to(device).requires_grad_()
    with torch.autocast(device.type, autocast_dtype(device)):
        product = left.to(device) @ weight
    product.float().sum().backward()
    expected = left @ left.T.flip(0)
    if not torch.allclose(product.float().cpu(), expected, rtol=1e-2):
        return "it multiplies matrices wrongly"
    gradient = left.sum(0)[:, None].expand(8, 8)
    return None if torch.allclose(weight.grad.cpu(), gradient, rtol=1e-2) else "its gradients are wrong"


def autocast_dtype(device: str | torch.device) -> torch.dtype:
    """Return the 16-bit type that `device` computes in: fp16 below compute capability 8, else bfloat16.

    `torch.cuda.is_bf16_supported()` says yes on a T4 (7.5), too, where bfloat16 is emulated.
    """
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return torch.float16
    return torch.bfloat16


def free_memory(device: str | torch.device = "cpu") -> int:
    """Return the bytes that this process can still have: of RAM, in a container as many as it is allowed, or of a GPU.

    What PyTorch keeps ready on the GPU for this process's next tensors is free to it, though not to others.
    """
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    free = [psutil.virtual_memory().available]
    limit, used, kinds = (_CGROUP / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.exists() and limit.read_text().strip().isdigit():
        cached = dict(line.split() for line in kinds.read_text().splitlines())["inactive_file"]  # given back on demand
        free.append(int(limit.read_text()) - int(used.read_text()) + int(cached))
    return min(free)


def free_disk(folder: str | Path) -> int:
    """Return the bytes that are free where `folder` is, or will be."""
    folder = Path(folder).absolute()
    while not folder.exists():
        folder = folder.parent
    return psutil.disk_usage(str(folder)).free


def require_room(what: str, *, download: int, load: int, folder: str | Path) -> None:
    """Raise NotEnoughRoom if `download` bytes do not fit into `folder`, or files of `load` bytes cannot be loaded."""
    for place, needed, free, remedy in (
        ("disk", download, free_disk(folder), f"make room where {folder} is"),
        ("RAM", LOADING * load, free_memory(), "close other notebooks and programs, or take a machine with more"),
    ):
        if needed > free:
            raise NotEnoughRoom(
                f"{what} needs {needed / 1e9:.1f} GB of {place}, but {free / 1e9:.1f} GB are free: {remedy}. Nothing "
                f"was downloaded."
            )


def require_room_in_cache(what: str, sizes: Callable[[], tuple[int, int]]) -> None:
    """Raise NotEnoughRoom if there is none for `sizes`: bytes to download to the Hub's cache, and bytes to load.

    If the Hub cannot be asked, nothing is required: what the cache holds can still be loaded.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        download, load = sizes()
    except ConnectionError as error:
        logger.info("how much %s takes is not known: %s", what, error)
        return
    require_room(what, download=download, load=load, folder=HF_HUB_CACHE)


def _in_one_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
