"""Memory that a peer's processes let go of: what forks have of the trainer's, and what nobody uses any more.

A fork shares all memory with its parent until one of them writes there; from then on, each has a page of its own. The
trainer writes to its weights, gradients and statistics in every epoch. So an averager, or the hash table's process,
would keep for good what all of them were when it was forked.
"""

import contextlib
import ctypes
from collections.abc import Iterable

from torch import Tensor


def let_go(tensors: Iterable[Tensor]) -> None:
    """Free the memory of tensors that nobody in this process uses any more; the process it was forked from keeps them.

    Tensors that are shared between processes, or on a GPU, stay as they are. The others have no values afterwards.
    """
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type == "cpu" and not storage.is_shared() and storage.resizable():
            storage.resize_(0)
    give_back()


def give_back() -> None:
    """Give freed memory back to the system. The C library keeps much of it for as long as a process runs.

    After a batch and a round of the paper's size that are up to 2 GB in a trainer and 0.7 GB in each averager. It takes
    some hundredths of a second.
    """
    with contextlib.suppress(AttributeError, OSError):  # other C libraries than glibc give memory back by themselves
        ctypes.CDLL(None).malloc_trim(0)
