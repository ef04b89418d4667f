"""This machine: memory, disk, and the GPUs that really compute."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from dalle_lib.one_line import printable

logger = logging.getLogger(__name__)

SMALL_PARAMETERS = 10_000_000
"""Models with fewer parameters draw on one thread; the embedded runs' have 3.6 million, the paper's 126 million."""
_CGROUP = Path("/sys/fs/cgroup")
LOADING = 2
"""Bytes of RAM for each byte of a model's files: while the model is read, its tensors exist twice."""


class NotEnoughRoom(RuntimeError):
    """A download would not fit on this machine's disk or in its memory."""


@dataclass(frozen=True)
class DeviceCheck:
    """One GPU, and whether it computes."""

    device: str
    """As torch names it: cuda:0."""
    name: str
    bytes: int
    problem: str | None
    """What went wrong when it multiplied two matrices; None if the product was right."""


def gpus() -> list[DeviceCheck]:
    """Return this machine's GPUs, each with the result of `check_gpu`."""
    return [check_gpu(f"cuda:{index}") for index in range(torch.cuda.device_count())]


def working_gpus() -> list[str]:
    """Return the GPUs that compute correctly, as torch names them: "cuda:0"."""
    return [gpu.device for gpu in gpus() if gpu.problem is None]


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Return `device` if it is given, else the first GPU that computes, else the processor.

    Raises ValueError for a name that is no device, and for a GPU that torch does not find here.
    """
    if device is None:
        return torch.device(next(iter(working_gpus()), "cpu"))
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"expected device cpu or cuda, but got device={str(device)!r}.") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= (found := torch.cuda.device_count()):
        raise ValueError(f"expected a device that is here (torch finds {found} GPUs), but got device={str(device)!r}.")
    return chosen


def check_gpu(device: str) -> DeviceCheck:
    """Return a GPU's name and size, and what is wrong with a matrix product on it (`compute_problem`)."""
    try:
        properties = torch.cuda.get_device_properties(device)
        name, size = properties.name, properties.total_memory
    except (RuntimeError, AssertionError) as error:
        return DeviceCheck(device, "unknown", 0, _first_line(error))
    try:
        return DeviceCheck(device, name, size, compute_problem(torch.device(device)))
    except RuntimeError as error:
        return DeviceCheck(device, name, size, _first_line(error))


def name_of(device: torch.device) -> str:
    """Return what a device is called, in at most 60 letters, such as "Tesla T4"; "processor" where it has no name."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        named = re.search(r"^model name\s*: (.+)$", _cpuinfo(), re.M) if device.type == "cpu" else None
        name = named[1] if named else {"cpu": "processor"}.get(device.type, device.type)
    return printable(name)[:60]


def names_of(devices: Iterable[torch.device]) -> str:
    """Return what some devices are called, in at most 60 letters, such as "2 x Tesla T4"."""
    counted = Counter(map(name_of, devices)).items()
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted)[:60]


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return ""


def has_bf16_instructions() -> bool:
    """Return whether this processor multiplies bfloat16 itself; on others it is emulated, and slow."""
    return re.search(r"^flags\s*:.*\b(avx512_bf16|amx_bf16)\b", _cpuinfo(), re.M) is not None


def compute_problem(device: torch.device) -> str | None:
    """Return what is wrong with a small matrix product and its gradient on `device`, in 16 bits, or None."""
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
    """Return the 16-bit type for `device`: float16 on GPUs below compute capability 8, else bfloat16.

    `torch.cuda.is_bf16_supported()` is true on a T4 (7.5) as well, where bfloat16 is emulated.
    """
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return torch.float16
    return torch.bfloat16


@contextmanager
def few_threads(model: torch.nn.Module) -> Iterator[None]:
    """Compute on one thread of a processor inside this block if `model` is small; else on as many as before.

    torch's threads wait for each other by spinning, at each operation. A small model's operations are so short that a
    second thread saves little; but beside a busy program it may wait for a core while the first one spins, thousands of
    times. Measured on two cores with 3.6 million parameters, 8 candidates of 8x8 codes: 0.38 s on one thread, alone or
    beside a busy program; on two threads 0.31 s alone, 1.0 s beside it (up to minutes on a machine with more to do).
    How threads wait can only be set before torch is loaded (OMP_WAIT_POLICY); one thread waits for nobody.
    """
    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: str | torch.device = "cpu") -> int:
    """Return the bytes of RAM, or of a GPU's memory, that this process can still use.

    In a container, RAM is what the container may still use. On a GPU, memory that PyTorch keeps ready for the next
    tensors of this process counts as free, and no more than the share of it that this process may take.
    """
    if (gpu := torch.device(device)).type == "cuda":
        reserved, (free, whole) = torch.cuda.memory_reserved(gpu), torch.cuda.mem_get_info(gpu)
        share = torch.cuda.get_per_process_memory_fraction(gpu.index)
        return max(0, min(free, int(share * whole) - reserved)) + reserved - torch.cuda.memory_allocated(gpu)
    free = [psutil.virtual_memory().available]
    limit, used, kinds = (_CGROUP / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.exists() and limit.read_text().strip().isdigit():
        cached = dict(line.split() for line in kinds.read_text().splitlines())["inactive_file"]  # given back on demand
        free.append(int(limit.read_text()) - int(used.read_text()) + int(cached))
    return min(free)


def free_disk(folder: str | Path) -> int:
    """Return the free bytes on the disk where `folder` is, or will be."""
    folder = Path(folder).absolute()
    while not folder.exists():
        folder = folder.parent
    return psutil.disk_usage(str(folder)).free


def require_room(what: str, *, download: int, load: int, folder: str | Path) -> None:
    """Raise NotEnoughRoom if `download` bytes do not fit into `folder`, or files of `load` bytes into memory."""
    for place, needed, free, remedy in (
        ("disk", download, free_disk(folder), f"free some space in {folder}"),
        ("RAM", LOADING * load, free_memory(), "close other notebooks and programs, or use a machine with more"),
    ):
        if needed > free:
            raise NotEnoughRoom(
                f"{what} needs {needed / 1e9:.1f} GB of {place}, but {free / 1e9:.1f} GB are free: {remedy}. Nothing "
                "was downloaded."
            )


def require_room_in_cache(what: str, sizes: Callable[[], tuple[int, int]]) -> None:
    """Raise NotEnoughRoom if `sizes` do not fit: bytes to download into the Hub's cache, and bytes to load into memory.

    If the Hub cannot be asked for the sizes, this returns: what the cache holds can still be loaded.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        download, load = sizes()
    except ConnectionError as error:
        logger.info("the size of %s is not known: %s", what, error)
        return
    require_room(what, download=download, load=load, folder=HF_HUB_CACHE)


def _first_line(error: BaseException) -> str:
    """Return what a GPU's error says; the lines after the first advise those who debug CUDA's own code."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
