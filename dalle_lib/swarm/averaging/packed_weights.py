"""The weights of all senders in an average, as a reducer tells them with it."""

import numpy as np
import torch
from torch import Tensor


def pack_weights(weights: Tensor) -> bytes:
    """Return the bytes that tell a sender the weight of every sender in one part's average.

    Layout: one float32 for each sender, little-endian, in the order of the group's senders. They travel in the field
    `peer_id` of hivemind's `AveragingData`, which hivemind itself leaves empty in answers.
    """
    return weights.numpy().astype("<f4").tobytes()


def unpack_weights(packed: bytes, senders: int) -> Tensor:
    """Return the weights of shape (senders,) that `pack_weights` has packed.

    Raises ValueError for another number of bytes, and for weights that are negative or not finite.
    """
    if len(packed) != 4 * senders:
        raise ValueError(f"expected weights of {senders} senders in {4 * senders} bytes, but got {len(packed)} bytes")
    weights = torch.from_numpy(np.frombuffer(packed, "<f4").astype(np.float32))
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ValueError(f"expected finite weights of at least 0, but got {weights.tolist()}")
    return weights
