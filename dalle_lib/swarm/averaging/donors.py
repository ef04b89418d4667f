"""Taking over the state of another peer, if it may give it, and if it can be right."""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any

import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming
from torch import Tensor

logger = logging.getLogger(__name__)

OVERHEAD = 1.1
"""A state may take so many times the bytes of its tensors on the wire."""


@dataclass(frozen=True)
class ExpectedState:
    """What another peer's state must look like to be taken over."""

    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    """Shape and dtype of each, parameters first, then the optimizer's statistics."""
    min_epoch: int
    max_epoch: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.tensors)

    def problem(self, metadata: Any, tensors: list[Tensor]) -> str | None:
        """Return why a state cannot be taken over, or None if it can."""
        epoch = metadata.get("epoch") if isinstance(metadata, dict) else None
        if not isinstance(epoch, int) or not self.min_epoch <= epoch <= self.max_epoch:
            return f"its epoch is {epoch!r}, and not from {self.min_epoch} to {self.max_epoch}"
        if len(tensors) != len(self.tensors):
            return f"it has {len(tensors)} tensors, and not {len(self.tensors)}"
        for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, self.tensors, strict=True)):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                return f"its tensor {number} is {tensor.dtype} {tuple(tensor.shape)}, and not {dtype} {shape}"
            if tensor.is_floating_point() and not tensor.isfinite().all():
                return f"its tensor {number} holds NaN or infinity"
        return None


async def download(averager, expected: ExpectedState, timeout_s: float) -> tuple[dict, list[Tensor]] | None:
    """Return the state of the first peer that has one to take over, newest first, or None.

    Runs in the averager's process. A donor that is silent for `timeout_s` is given up.
    """
    for peer in await _candidates(averager, expected):
        if (problem := await averager.trust.refusal(str(peer))) is not None or not averager.trust.may_reduce(str(peer)):
            averager.tell(peer, f"may not give its state: {problem or 'it may not reduce either'}")
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
    """Return who offers a state, the latest epoch first; what nobody can have reached is not believed."""
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
    stub = averager.get_stub(averager._p2p, peer, namespace=averager.prefix)
    stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), timeout_s)
    metadata, parts, tensors, left = None, [], [], OVERHEAD * expected.size_bytes + 2**20
    async for message in aiter_with_timeout(stream, timeout_s):
        left -= message.ByteSize()
        if left < 0:
            raise ValueError(f"it is larger than the {expected.size_bytes:,} bytes that it should have")
        if message.metadata:
            metadata = MSGPackSerializer.loads(message.metadata)
        if message.tensor_part.dtype and parts:  # a dtype marks the beginning of a tensor
            tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
            parts = []
        parts.append(message.tensor_part)
        if len(tensors) == len(expected.tensors) - 1 and len(parts) == parts[0].chunks:
            break  # all is here: the donor waits for us to hang up
    await stream.aclose()
    if parts:
        tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
    if metadata is None:
        raise ValueError("it shares none")
    return metadata, tensors
