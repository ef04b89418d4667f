"""Train a model for a few steps in a process of its own, and count the memory and the time of a step."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from dalle_lib.checkpoint import save_tensors
from dalle_lib.machine import free_memory
from dalle_lib.memory import Training, estimate
from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.memory.hardware import gpu_of
from dalle_lib.memory.presets import describe

_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Bytes, seconds and losses of some training steps; if they did not fit, only the bytes needed and available."""

    training: Training
    """The options of the training."""
    device: str
    """`cuda` or `cpu`."""
    predicted: int
    """Bytes of tensors at the peak, as the calculator predicts them."""
    available: int
    """Bytes that the device had for tensors."""
    peak: int | None = None
    """Bytes of tensors at the peak, by CUDA's allocator or by the profiler's record of the CPU's; None if none fit."""
    gradients: int = 0
    """Bytes of the gradients at the peak: only some exist while the backward pass is on its way."""
    peaks_in_optimizer_step: bool = False
    """Whether memory peaks in the optimizer's step, when no activations are left."""
    weights: int = 0
    """Bytes of the weights."""
    statistics: int = 0
    """Bytes of the optimizer's statistics, wherever they are."""
    saved: int = 0
    """Bytes kept for the backward pass, without weights and without what is recomputed."""
    seconds: float = 0.0
    """Seconds of a step: the median, after three steps to warm up."""
    losses: list[float] = field(default_factory=list)
    """The loss of each step, those to warm up included."""
    error: str = ""
    """Why nothing was measured; empty if the steps ran."""

    @property
    def fits(self) -> bool:
        """Whether the steps ran."""
        return self.peak is not None

    @property
    def prediction_error(self) -> float:
        """The error of the predicted peak, as a share of the measured peak."""
        return self.predicted / self.peak - 1


def measure(
    model: str | Mapping | Path,
    training: Training,
    *,
    steps: int = 3,
    blocks: Tensor | None = None,
    lr: float = 1e-3,
    seed: int = 0,
    device: str | None = None,
) -> Measurement:
    """Return what `steps` training steps of `model` took, after some to warm up, in a fresh process.

    A training that does not fit is a result, too: `Measurement.fits` is False. `model` is a preset, the fields of a Hub
    config, or the folder of a pretrained transformers model. It learns from `blocks` [steps, batch, sequence] of ids,
    or from random ids.

    Raises ValueError for options that no real model here has, and RuntimeError if the process fails for another reason
    than memory.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    config = json.loads((model / "config.json").read_text()) if isinstance(model, Path) else model
    length = training.sequence or describe(config).shape.sequence
    _require_possible(config, training, device, blocks, length)
    available = free_bytes(device)
    gpu = gpu_of(torch.cuda.get_device_name()) if device == "cuda" else None
    expected = estimate(config, training, "cuda" if device == "cuda" else "cpu", gpu)
    result = Measurement(training=training, device=device, predicted=expected.allocated, available=available)
    if expected.gpu_range[0] > available:
        return replace(result, error="the calculator says that it does not fit")
    with tempfile.TemporaryDirectory() as folder:
        job = {"model": str(model) if isinstance(model, Path) else model, "training": asdict(training), "lr": lr}
        job |= {"steps": steps, "seed": seed, "device": device, "folder": folder, "from_file": isinstance(model, Path)}
        job["length"] = length
        if blocks is not None:
            save_tensors(Path(folder) / "blocks.safetensors", {"blocks": blocks}, {})
        command = [sys.executable, "-m", "dalle_lib.measurement.worker"]
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode == 0:
        return replace(result, **json.loads(done.stdout.splitlines()[-1]))
    if done.returncode == -9 or any(sign in done.stderr for sign in _OUT_OF_MEMORY):
        return replace(result, error="it ran out of memory")
    raise RuntimeError(f"the measurement of {model} failed:\n{done.stderr[-2000:]}")


def free_bytes(device: str) -> int:
    """Return the bytes that new tensors can take on `device`."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory()


def _require_possible(config, training: Training, device: str, blocks: Tensor | None, length: int) -> None:
    is_dalle = isinstance(describe(config), DALLEDescription)
    impossible = {
        "distinct_layers": training.distinct_layers is not None,
        "reversible layers of other models than this kit's own": training.reversible and not is_dalle,
        "swarm": training.swarm,
        "checkpointing of this kit's own model": training.checkpointing and is_dalle,
        "accumulates with an offloaded optimizer": training.accumulates and training.is_offloaded,
        "fp16 with an offloaded optimizer": training.precision == "fp16" and training.is_offloaded,
        "fp16 without a GPU": training.precision == "fp16" and device == "cpu",
    }
    if found := [name for name, is_asked in impossible.items() if is_asked]:
        raise ValueError(f"{', '.join(found)} can be estimated, but not measured: leave it off.")
    if blocks is not None and blocks.shape[1:] != (training.batch, length):
        raise ValueError(
            f"expected blocks of shape [steps, {training.batch}, {length}], as `training` says, "
            f"but they have {list(blocks.shape)}."
        )
