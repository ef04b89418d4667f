"""What training a model really takes: a few steps in a process of their own, and all that can be counted of them."""

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
from dalle_lib.memory.dalle import DALLE
from dalle_lib.memory.presets import build

_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Bytes, seconds and losses of some steps; or, if they did not fit, only what was needed and what there is."""

    training: Training
    device: str
    predicted: int
    """Bytes that the calculator expected tensors to take at the highest moment."""
    available: int
    """Bytes that the device had for tensors."""
    peak: int | None = None
    """Bytes that tensors took at the highest moment: of the CUDA allocator, or of the CPU's as the profiler saw it."""
    weights: int = 0
    statistics: int = 0
    """Bytes of the optimizer's state, wherever it is."""
    saved: int = 0
    """Bytes kept for the backward pass, weights and what is recomputed left out."""
    seconds: float = 0.0
    """Of a step: the median, after three to warm up."""
    losses: list[float] = field(default_factory=list)
    error: str = ""
    """Why nothing was measured."""

    @property
    def fits(self) -> bool:
        """Whether the steps ran."""
        return self.peak is not None

    @property
    def prediction_error(self) -> float:
        """How far the calculator was off, as a share of the peak."""
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
    """Train `model` for some steps in a fresh process and return what it took. What does not fit is a result too.

    `model` is a preset, a Hub config's fields, or the folder of a pretrained transformers model; `blocks`
    [steps, batch, sequence], if given, is what it learns from, else random tokens. Raises ValueError for options that
    no real model here has, RuntimeError if the process fails for another reason than memory.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    config = json.loads((model / "config.json").read_text()) if isinstance(model, Path) else model
    length = training.sequence or build(config).shape.sequence
    _require_possible(config, training, device, blocks, length)
    available = free_bytes(device)
    expected = estimate(config, training, "cuda" if device == "cuda" else "cpu")
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
    """Return the bytes that new tensors can have on a device."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory()


def _require_possible(config, training: Training, device: str, blocks: Tensor | None, length: int) -> None:
    is_dalle = isinstance(build(config), DALLE)
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
        raise ValueError(f"{', '.join(found)} can be estimated, but not measured: leave it out.")
    if blocks is not None and blocks.shape[1:] != (training.batch, length):
        raise ValueError(
            f"expected blocks of shape [steps, {training.batch}, {length}], as `training` says, "
            f"but they have {list(blocks.shape)}."
        )
