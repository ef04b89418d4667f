"""GPUs, and the memory on them and in RAM that tensors cannot use."""

from dataclasses import dataclass

from dalle_lib.names import did_you_mean, find_name

GIB = 2**30


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
        GPU("H100", 79.10, True, 989),
        GPU("H200", 139.81, True, 989),
    )
}

CONTEXT = (round(0.25 * GIB), round(0.7 * GIB))
"""Bytes of a GPU that CUDA, its kernels and cuBLAS take: an assumed range.

An H200 took a little more (benchmarks/README.md).
"""
SLACK = (0.0, 0.08)
"""Memory that the caching allocator loses to fragmentation, as a share of what is allocated: an assumed range."""
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
    return GPU(f"a GPU with {gib:g} GiB", gib, has_bf16=True, teraflops=None)
