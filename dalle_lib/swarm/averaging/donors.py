"""Downloads the state of another peer, if that peer may give it and the state can be right."""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any

import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming
from torch import Tensor

from dalle_lib.swarm import wire

logger = logging.getLogger(__name__)

MAX_OVERHEAD = 1.1
"""Bytes of a state on the wire, at most, as a multiple of the bytes of its tensors; 1 MiB may be added."""


@dataclass(frozen=True)
class ExpectedState:
    """The form of a state that this peer takes over."""

    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    """Shape and dtype of each tensor: the parameters, then the optimizer's statistics."""
    min_epoch: int
    max_epoch: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, uncompressed."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.tensors)

    def problem(self, metadata: Any, tensors: list[Tensor]) -> str | None:
        """Return why a state cannot be right, or None if it can."""
        epoch = metadata.get("epoch") if isinstance(metadata, dict) else None
        if not isinstance(epoch, int) or not self.min_epoch <= epoch <= self.max_epoch:
            return f"its epoch is {epoch!r}, expected {self.min_epoch} to {self.max_epoch}"
        if len(tensors) != len(self.tensors):
            return f"it has {len(tensors)} tensors, expected {len(self.tensors)}"
        for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, self.tensors, strict=True)):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                return f"its tensor {number} is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}"
            if tensor.is_floating_point() and not tensor.isfinite().all():
                return f"its tensor {number} holds NaN or infinity"
        return None


async def download(averager, expected: ExpectedState, timeout_s: float) -> tuple[dict, list[Tensor]] | None:
    """Return metadata and tensors of the newest state that a peer may give and that can be right; None without one.

    Runs in the averager's process. A donor that is silent for `timeout_s` seconds is given up.
    """
    for peer in await _candidates(averager, expected):
        if (problem := await averager.trust.refusal(str(peer))) is not None or not averager.trust.may_reduce(str(peer)):
            averager.tell(peer, f"may not give its state: {problem or 'only peers that may reduce give states'}")
            continue
        try:
            metadata, tensors = await _receive(averager, peer, expected, timeout_s)
        except Exception as error:
            averager.tell(peer, f"its state did not arrive: {error or type(error).__name__}")
            continue
        if (problem := expected.problem(metadata, tensors)) is not None:
            averager.tell(peer, f"its state is refused: {problem}")
            continue
        logger.info("took over the state of %s at epoch %d", peer, metadata["epoch"])
        return metadata, tensors
    return None


async def _candidates(averager, expected: ExpectedState) -> list[PeerID]:
    """Return the peers that offer a state, the latest epoch first; epochs beyond the end of the run are ignored."""
    found = await averager.dht.get(f"{averager.prefix}.all_averagers", latest=True, return_future=True)
    offers = found.value if found is not None and isinstance(found.value, dict) else {}
    epochs = {}
    for peer, offer in offers.items():
        epoch = getattr(offer, "value", None)
        if isinstance(epoch, int | float) and 0 <= epoch <= expected.max_epoch:
            epochs[PeerID(peer)] = epoch, random.random()
    epochs.pop(averager.peer_id, None)
    return sorted(epochs, key=epochs.get, reverse=True)


async def _receive(averager, peer: PeerID, expected: ExpectedState, timeout_s: float) -> tuple[Any, list[Tensor]]:
    """Return the metadata and tensors that a peer sends. Raises ValueError if they are too long or incomplete."""
    stub = averager.get_stub(averager._p2p, peer, namespace=averager.prefix)
    stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), timeout_s)
    metadata, parts, tensors, left = None, [], [], MAX_OVERHEAD * expected.size_bytes + 2**20
    async for message in aiter_with_timeout(stream, timeout_s):
        left -= message.ByteSize()
        if left < 0:
            raise ValueError(f"it is larger than the {expected.size_bytes:,} bytes of the run's tensors")
        if message.metadata:
            metadata = wire.loads(message.metadata)
        if message.tensor_part.dtype and parts:  # a dtype marks the beginning of a tensor
            tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
            parts = []
        parts.append(message.tensor_part)
        if len(tensors) == len(expected.tensors) - 1 and len(parts) == parts[0].chunks:
            break  # everything is here, and the donor waits for us to close the stream
    await stream.aclose()
    if parts:
        tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
    if metadata is None:
        raise ValueError("it sent no metadata")
    return metadata, tensors
