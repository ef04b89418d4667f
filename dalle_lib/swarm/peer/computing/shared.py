"""What a trainer and the workers on its further devices share: memory, and the messages between them."""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dalle_lib.model import ModelConfig
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.peer.computing.computer import Gradient
from dalle_lib.swarm.peer.computing.way import Way

Rows = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Batches, each as the ids of captions, of codes, and of codes that are shown."""


@dataclass(frozen=True)
class Job:
    """What a worker is there for: its first message, which it answers with its Way when it can compute."""

    config: ModelConfig
    device: str
    threads: int
    """Threads of the processor."""
    gpu_share: float
    """Part of a GPU's memory that it may take."""
    way: Way | None
    """How it is to compute; None for what its own trials find."""
    limit: int
    """The most samples at a time, for trials."""
    trains_for_s: float
    rows: int | None = None
    """Samples of a batch for which it gets ready: those of the last one, or else the way's."""


@dataclass(frozen=True)
class Computed:
    """A worker's answer to rows, whose mean gradient is in its part of the memory."""

    found: Gradient
    way: Way
    why: str
    """Why the way has changed, if it has."""


@dataclass(frozen=True)
class Failed:
    """A worker's last answer."""

    problem: str


class SharedFloats:
    """Parts of `count` values in memory that several processes see: a file without a name, which ends with the last."""

    def __init__(self, parts: int, count: int, file: int | None = None) -> None:
        """Make room for the values, or take that of a file descriptor. Raises OSError if there is none."""
        self.file = _unnamed_file() if file is None else file
        if file is None:
            os.ftruncate(self.file, 4 * parts * count)
        self.values: Tensor = torch.frombuffer(mmap.mmap(self.file, 4 * parts * count), dtype=torch.float32)
        self.values = self.values.view(parts, count)

    def like(self, part: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the first values of a part as tensors of these shapes, one after another."""
        sizes = [tensor.numel() for tensor in tensors]
        values = self.values[part, : sum(sizes)].split(sizes)
        return [value.view(tensor.shape) for value, tensor in zip(values, tensors, strict=True)]

    def close(self) -> None:
        """Close the file; the memory stays as long as somebody uses the values."""
        os.close(self.file)


def _unnamed_file() -> int:
    """Return a new file without a name, in memory. Raises OSError where there is none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dalle-gradients")
    try:  # a Python that was built for older systems than this one
        file = ctypes.CDLL(None, use_errno=True).memfd_create(b"dalle-gradients", 1)  # not for programs it starts
    except AttributeError:
        raise OSError(errno.ENOSYS, "this system has no files in memory without a name") from None
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file


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
