"""Memory that ran out, however it is told, and forecasts of what fits."""

import errno
from dataclasses import asdict
from typing import Literal

import torch

from dalle_lib.machine import free_memory, name_of
from dalle_lib.memory import Estimate, Training, estimate
from dalle_lib.memory.hardware import GPU, gpu_of
from dalle_lib.model import ModelConfig
from dalle_lib.swarm.peer.computing.way import Way

_TOLD = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad allocation",
    "bad_alloc",
    "STATUS_ALLOC_FAILED",
)
"""What libraries say in a RuntimeError: CUDA, PyTorch on a processor (Linux and Windows), C++, cuBLAS and cuDNN."""
_SHARE = 0.5
"""Part of the free RAM that a trial may fill: a system without memory kills a program rather than refuse it some."""
WORKER_RAM = 2 * 10**9
"""Bytes of RAM of a worker on a GPU for its libraries: assumed, as no machine with two GPUs has been measured."""
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or in RAM."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):  # as where a process or a file cannot be mapped into memory
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(told in str(error) for told in _TOLD)


def fits(config: ModelConfig, way: Way, device: torch.device) -> bool | None:
    """Return whether the memory of a device that is free now has room for a batch computed this way, by forecast.

    None says that it may have: within the range of a GPU's forecast, and on devices that have none.
    """
    if device.type == "cpu":
        return forecast(config, way)[0] < _SHARE * free_memory()
    if device.type != "cuda":
        return None
    found = _estimated(config, way, "cuda", gpu_of(name_of(device)))
    return found.fits(free_memory(device) + _there(found, "CUDA context"))


def forecast(config: ModelConfig, way: Way) -> tuple[int, int]:
    """Return what computing a batch needs by the memory calculator: bytes beside weights and gradients, and FLOPs."""
    found = _estimated(config, way, "cpu")
    return found.allocated - _there(found), found.flops


def _estimated(config: ModelConfig, way: Way, device: Literal["cpu", "cuda"], gpu: GPU | None = None) -> Estimate:
    training = Training(
        batch=way.batch, precision=_PRECISIONS[way.precision], reversible=way.is_reversible, offload="optimizer"
    )
    return estimate({"model_type": "dalle", **asdict(config)}, training, device, gpu)


def _there(found: Estimate, *terms: str) -> int:
    """Return the bytes of a forecast that a trainer's device holds anyway: weights, gradients, and other terms."""
    return sum(found.gpu.get(term, 0) for term in ("weights", "gradients", *terms))


def ram_of_workers(parameters: int, workers: int) -> int:
    """Return the bytes of RAM of some workers: libraries, gradients, and a copy of the weights that all share."""
    return workers * WORKER_RAM + 4 * parameters * (workers + 1)


def limit_gpu(device: torch.device, share: float) -> None:
    """Let this process allocate at most a share of a GPU's memory; of other devices, nothing is limited."""
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device.index or 0)  # it takes no device without a number
