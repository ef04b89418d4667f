"""A sketch of tensors: 64 numbers that are as far apart as the tensors are, up to some percent.

With ``x`` the values of a tensor in rows of `SIZE`, ``s`` random signs and ``r`` random turns of its own for each
tensor, a sketch is the sum over tensors and rows of ``roll(s[row] * x[row], r[row])``. So each value is added to one of
the numbers, or subtracted from it.

It is linear, and the expectation of its squared norm is that of the values. Where a difference is spread over many
values, the norm of its sketch is that of the difference to 9%, as one standard deviation: sqrt(1 / (2 * `SIZE`)).
Charikar, Chen, Farach-Colton: Finding frequent items in data streams (2002).
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dalle_lib.swarm.process.drift import SIZE

ROWS = 256
"""Rows that are converted at a time, so that the memory it takes is the same for any tensor."""


def sketch(tensors: Iterable[Tensor]) -> Float[np.ndarray, "64"]:
    """Return the sketch of tensors in this order, on any device and of any floating type, as float64.

    The same values give the same numbers on all machines, to the last digits of float64: signs and turns are random
    bits of numpy's Philox, whose stream never changes, and values are added as float64. NaN and infinity give NaN.
    """
    total, places = np.zeros(SIZE), np.arange(SIZE)
    for number, tensor in enumerate(tensors):
        random = np.random.Philox(key=number)
        for block in tensor.detach().reshape(-1).split(ROWS * SIZE):
            rows = -(-len(block) // SIZE)
            values = np.zeros(rows * SIZE, np.float32)
            values[: len(block)] = block.float().cpu().numpy()
            signs, turns = random.random_raw(2 * rows).astype("<u8").reshape(2, rows)
            values *= 1 - 2 * np.unpackbits(signs.view(np.uint8)).astype(np.float32)
            turned = (places + (turns % SIZE).astype(np.int64)[:, None]) % SIZE
            total += np.bincount(turned.reshape(-1), values, SIZE)
    return total
