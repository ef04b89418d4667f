"""GPUs, and the memory on them and in RAM that tensors cannot use."""

import re
from dataclasses import dataclass

from dalle_lib.names import did_you_mean, find_name

GIB = 2**30
MIB = 2**20

CONTEXT = (round(0.25 * GIB), 810_000_000)
"""Bytes of a GPU that CUDA, its libraries and their kernels take: an assumed range, whose upper end is Hopper's."""
HOPPER_CONTEXT = (640_000_000, 810_000_000)
"""The same of an H100: with one tensor, and after a training, by benchmarks/gpu_memory.py. An H200 took 0.81 GB."""
WORKSPACE = 8_519_680
"""Bytes of the workspace that cuBLAS gets of PyTorch for each thread that computes, by PyTorch's source."""
HOPPER_WORKSPACE = 32 * MIB
"""The same on Hopper."""
BIAS_WORKSPACE = MIB
"""Bytes that cuBLASLt gets beside, for each thread in which it adds a bias to a product."""


@dataclass(frozen=True)
class GPU:
    """A GPU: its memory as torch reports it, and its peak speed."""

    name: str
    gib: float
    """Total memory in GiB, from public reports of torch's own messages."""
    has_bf16: bool
    """Whether its matrix units compute in bf16."""
    teraflops: float | None
    """Peak of dense 16-bit matrix products with 32-bit sums, in 10^12 operations per second, by the data sheet; or
    None if it is not known."""
    context: tuple[int, int] = CONTEXT
    """Bytes that CUDA takes: the lower and the upper end of what is measured or assumed."""
    workspace: tuple[int, int] = (WORKSPACE, WORKSPACE)
    """Bytes of cuBLAS's workspace for each thread that computes: both ends are the same if the family is known."""

    @property
    def size(self) -> int:
        """Total memory in bytes."""
        return round(self.gib * GIB)


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("T4", 14.74, False, 65),
        GPU("P100", 15.89, False, 9.5),
        GPU("V100 16GB", 15.77, False, 125),
        GPU("V100 32GB", 31.74, False, 125),
        GPU("RTX 2080 Ti", 10.75, False, 57),
        GPU("RTX 3060", 11.76, True, 25),
        GPU("RTX 3090", 23.69, True, 71),
        GPU("RTX 4090", 23.65, True, 165),
        GPU("A10G", 22.19, True, 70),
        GPU("L4", 22.03, True, 121),
        GPU("A100 40GB", 39.39, True, 312),
        GPU("A100 80GB", 79.15, True, 312),
        GPU("H100", 79.10, True, 989, HOPPER_CONTEXT, (HOPPER_WORKSPACE, HOPPER_WORKSPACE)),
        GPU("H200", 139.81, True, 989, HOPPER_CONTEXT, (HOPPER_WORKSPACE, HOPPER_WORKSPACE)),
    )
}

ANY_WORKSPACE = (WORKSPACE, HOPPER_WORKSPACE)
"""The ends of `GPU.workspace` for a GPU of any family."""
SLACK = (0.01, 0.18)
"""Memory that PyTorch's allocator holds beyond tensors, as a share of theirs, where activations are kept.

The lower end is the least that it reserved with `expandable_segments`, the upper end the most that any of 13 trainings
needed to still run within a limit (benchmarks/gpu_memory.py). While there is room it reserves more.
"""
RECOMPUTED_SLACK = (0.04, 0.27)
"""The same with checkpointing or reversible layers, of 17 trainings."""
SEGMENT = 20 * MIB
"""Bytes that the allocator takes of CUDA at a time for tensors of 1 to 10 MiB: it may hold one in vain."""
PROCESS = (round(1.0 * GIB), round(3.0 * GIB))
"""Bytes of RAM that Python, torch and its libraries take: an assumed range."""
DATA = (round(0.1 * GIB), round(1.0 * GIB))
"""Bytes of RAM that a stream of text or codes takes: an assumed range."""


def gpu_named(name: str) -> GPU:
    """Return the GPU called `name`, whatever the case of its letters, or one with `name` GiB and no known peak.

    Raises ValueError if `name` is neither.
    """
    if found := find_name(name, GPUS):
        return GPUS[found]
    try:
        gib = float(name)
    except ValueError:
        gib = 0.0
    if not 0 < gib < 1e6:
        known = f"expected one of {', '.join(GPUS)}, or its memory in GiB as a number, such as 16"
        raise ValueError(f"unknown GPU {name!r}: {did_you_mean(name, GPUS)}{known}.")
    return GPU(f"a GPU with {gib:g} GiB", gib, has_bf16=True, teraflops=None, workspace=ANY_WORKSPACE)


def gpu_of(device: str) -> GPU | None:
    """Return the GPU that torch calls `device`, such as "Tesla V100-SXM2-16GB"; None if it is none of `GPUS`."""
    words = set(re.split(r"[\s-]+", device))
    known = [gpu for name, gpu in GPUS.items() if words.issuperset(name.split())]
    return max(known, key=lambda gpu: len(gpu.name), default=None)


def summing_bytes(rows: int, columns: int) -> int:
    """Return the bytes of working memory in which PyTorch adds up the rows of a matrix on a GPU.

    Few long columns are shared out among more blocks of threads than there are columns, and each thread has a place for
    its sum: up to two numbers an element, and up to 138 MB. Source: ATen's Reduce.cuh, with 132 multiprocessors of 2048
    threads, as Hopper has them; on a smaller GPU large sums take less.
    """
    vector = 4 if columns % 4 == 0 else 2 if columns % 2 == 0 else 1
    width = 32 * vector
    values = -(-rows // (512 // width))
    if columns < width or values < 256:
        return 0
    groups, most = -(-columns // width), 132 * 2048 * vector // 512
    blocks = max(min(-(-most // groups), -(-values // 16)), -(-values // 256))
    return 4 * columns * blocks * width if blocks > 1 else 0
