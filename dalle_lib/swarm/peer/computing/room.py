"""Memory that ran out, however it is told, and forecasts of what fits."""

from dataclasses import asdict
from functools import lru_cache

import torch

from dalle_lib.machine import free_memory
from dalle_lib.memory import Training, estimate
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
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or in RAM."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(told in str(error) for told in _TOLD)


def fits(config: ModelConfig, way: Way) -> bool:
    """Return whether the RAM that is free now has room for a batch computed this way, by forecast."""
    return forecast(config, way)[0] < _SHARE * free_memory()


def forecast(config: ModelConfig, way: Way) -> tuple[int, int]:
    """Return what computing a batch needs by the memory calculator: bytes beside weights and gradients, and FLOPs."""
    return _forecast(config, way.batch, _PRECISIONS[way.precision], way.is_reversible)


@lru_cache
def _forecast(config: ModelConfig, batch: int, precision: str, is_reversible: bool) -> tuple[int, int]:
    training = Training(batch=batch, precision=precision, reversible=is_reversible, offload="optimizer")
    found = estimate({"model_type": "dalle", **asdict(config)}, training, "cpu")
    return found.allocated - found.gpu.get("weights", 0) - found.gpu.get("gradients", 0), found.flops


def limit_gpu(device: torch.device, share: float) -> None:
    """Let this process allocate at most a share of a GPU's memory; of other devices, nothing is limited."""
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)
