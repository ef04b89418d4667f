"""What a trainer and the workers on its further devices share: memory, and the messages between them."""

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dalle_lib.model import ModelConfig
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.way import Way

Rows = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Batches, each as the ids of captions, of codes, and of codes that are shown."""


@dataclass(frozen=True)
class Job:
    """What a worker is there for: the first message that it gets."""

    config: ModelConfig
    device: str
    threads: int
    """Threads of the processor."""
    gpu_share: float
    """Part of a GPU's memory that it may take."""


@dataclass(frozen=True)
class Order:
    """How a worker is to compute: in this way, or in the one that its own trials find."""

    way: Way | None
    limit: int
    """The most samples at a time, for trials."""
    trains_for_s: float


@dataclass(frozen=True)
class Ready:
    """A worker's answer to an order: it computes in this way."""

    way: Way


@dataclass(frozen=True)
class Computed:
    """A worker's answer to rows, whose mean gradient is in its memory."""

    losses: list[float]
    """Mean loss of each batch."""
    norm: float
    scale: float
    seconds: float
    way: Way
    why: str
    """Why the way has changed, if it has."""


@dataclass(frozen=True)
class Failed:
    """A worker's last answer."""

    problem: str


class SharedFloats:
    """Values in memory that several processes see: a file without a name, which ends with the last of them."""

    def __init__(self, count: int, file: int | None = None) -> None:
        """Make room for `count` values, or take that of a file descriptor. Raises OSError if there is none."""
        self.file = file
        if file is None:
            self.file = os.memfd_create("dalle-gradients")
            os.ftruncate(self.file, 4 * count)
        self._memory = mmap.mmap(self.file, 4 * count)
        self.values: Tensor = torch.frombuffer(self._memory, dtype=torch.float32)

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the values as tensors of these shapes, one after another."""
        parts = self.values.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def close(self) -> None:
        """Close the file; the memory stays as long as somebody uses the values."""
        os.close(self.file)


def rows_of(batches: Iterable[Batch]) -> Rows:
    """Return batches as they are sent to a worker."""
    return [tuple(ids.cpu().numpy() for ids in (batch.text, batch.codes, batch.input_codes)) for batch in batches]


def batches_in(rows: Rows) -> list[Batch]:
    """Return the batches that `rows_of` made."""
    return [Batch(*map(torch.from_numpy, ids)) for ids in rows]


def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors, one by one, to where others are."""
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
