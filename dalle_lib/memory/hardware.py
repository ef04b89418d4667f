"""GPUs, and what of their memory no tensor can have."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class GPU:
    """A GPU as torch reports it."""

    name: str
    gib: float
    """GiB in all, from public reports of torch's own messages."""
    has_bf16: bool
    """Whether its matrix units compute in bf16."""
    teraflops: float
    """Peak of 16-bit matrix products with 32-bit sums, dense, by the maker's data sheet."""

    @property
    def size(self) -> int:
        """Bytes."""
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
"""Bytes that CUDA, its kernels and cuBLAS take of a GPU: an assumed range, not measured here."""
SLACK = (0.0, 0.08)
"""Share of what is allocated that the caching allocator cannot use because of its shape: an assumed range."""
PROCESS = (round(1.0 * GIB), round(3.0 * GIB))
"""RAM of Python, torch and its libraries: an assumed range."""
DATA = (round(0.1 * GIB), round(1.0 * GIB))
"""RAM of a stream of text or codes: an assumed range."""


def gpu_bytes(name: str) -> int:
    """Return the bytes of a GPU by its name, or by its size in GiB. Raises ValueError for what is neither."""
    if name in GPUS:
        return GPUS[name].size
    try:
        size = float(name)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:
        raise ValueError(f"unknown GPU {name!r}: expected one of {', '.join(GPUS)}, or a size in GiB.")
    return round(size * GIB)
