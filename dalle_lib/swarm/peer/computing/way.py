"""A way to compute: what is switched on, how many samples at a time, and how fast it was."""

from dataclasses import dataclass
from typing import Literal

import torch

from dalle_lib.amounts import count
from dalle_lib.machine import autocast_dtype

Precision = Literal["float32", "float16", "bfloat16"]
IN_WORDS = {"float32": "float32", "float16": "fp16 with a loss scale", "bfloat16": "bf16"}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a peer computes gradients."""

    precision: Precision
    """float16 and bfloat16 are autocast's; weights and gradients are float32 in every way."""
    is_reversible: bool
    """Whether the layers run again in the backward pass, which takes a third longer and little memory."""
    is_compiled: bool = False
    """Whether each kind of layer is compiled."""
    is_recorded: bool = False
    """Whether a GPU replays a step that was recorded as a CUDA graph."""
    threads: int = 1
    """Threads of the processor."""
    batch: int = 1
    """Samples computed at a time."""
    samples_per_s: float | None = None
    """Samples a second as they were measured; trials on one thread count the processor's own time. None before that."""

    def in_words(self, device: str = "cpu") -> str:
        """Return the way as a volunteer reads it: `float32, 8 samples at a time, 2 threads, 21 samples/s`."""
        told = [IN_WORDS[self.precision], f"{count(self.batch, 'sample')} at a time"]
        told += [count(self.threads, "thread")] if device == "cpu" else []
        told += ["compiled layers"] if self.is_compiled else []
        told += ["recorded steps"] if self.is_recorded else []
        told += ["layers run again to save memory"] if self.is_reversible else []
        if (rate := self.samples_per_s) is not None:
            told.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s")
        return ", ".join(told)


def first_way(model: torch.nn.Module, device: torch.device) -> Way:
    """Return the way that needs no trial: 16 bits on a GPU, float32 elsewhere, layers as the model has them.

    GPUs below compute capability 8 have no bfloat16 of their own.
    """
    precision = str(autocast_dtype(device)).removeprefix("torch.") if device.type == "cuda" else "float32"
    return Way(precision=precision, is_reversible=model.transformer.is_reversible, threads=torch.get_num_threads())
