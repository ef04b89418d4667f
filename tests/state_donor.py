"""Donors that send the messages of a test, for `donors.download` without a swarm."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import torch
from auth_peers import identity
from hivemind.compression import serialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import ValueWithExpiration
from hivemind.utils.streaming import split_for_streaming
from torch import Tensor

from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging import donors
from dalle_lib.swarm.averaging.donors import ExpectedState
from dalle_lib.swarm.averaging.trust import Trust, owner_key
from dalle_lib.swarm.averaging.upload import Upload

DONOR = owner_key(identity("donor").public_key)
"""The donor's mark in the hash table."""
Messages = AsyncIterator[averaging_pb2.DownloadData]
EXPECTED = ExpectedState((((2, 3), torch.float32), ((4,), torch.uint8)), min_epoch=5, max_epoch=100)
STATE = {"epoch": 7}, [torch.zeros(2, 3), torch.zeros(4, dtype=torch.uint8)]
"""The form of a state, and a state of that form."""
WHOLE = [
    averaging_pb2.DownloadData(metadata=wire.dumps(STATE[0]), tensor_part=part)
    for tensor in STATE[1]
    for part in split_for_streaming(serialize_torch_tensor(tensor), 2**16)
]
"""Its messages."""


def newcomer(offers: dict[bytes, int], asked: Callable[[PeerID], Messages], trust: Trust, told: list[str]) -> object:
    """Return what `donors.download` needs of an averager.

    `offers` are epochs by the marks of their donors, `asked` gives the messages of a donor that is asked for its state,
    and what is told of donors comes into `told`.
    """

    async def get(*_, **__):
        return ValueWithExpiration({mark: ValueWithExpiration(epoch, 0.0) for mark, epoch in offers.items()}, 0.0)

    def get_stub(_p2p, peer: PeerID, **_):
        async def rpc_download_state(_request: averaging_pb2.DownloadRequest):
            return asked(peer)

        return SimpleNamespace(rpc_download_state=rpc_download_state)

    return SimpleNamespace(
        trust=trust,
        tell=lambda _peer, what: told.append(what),
        upload=Upload(),
        dht=SimpleNamespace(get=get),
        get_stub=get_stub,
        prefix="run_state_averager",
        peer_id=None,
        gave_no_state={},
        _p2p=None,
    )


def download_from(
    messages: Messages, expected: ExpectedState, timeout_s: float
) -> tuple[tuple[dict, list[Tensor]] | None, list[str]]:
    """Return what `donors.download` makes of a donor's messages, and what it tells of that donor."""
    told = []
    averager = newcomer({DONOR: expected.min_epoch}, lambda _peer: messages, Trust(), told)
    found = asyncio.run(donors.download(averager, expected, timeout_s))
    return found and found[1:], told


async def sent(*messages: averaging_pb2.DownloadData, again: int = 1, pause_s: float = 0.0) -> Messages:
    """Iterate over messages of a donor, which comes to each after a pause."""
    for _ in range(again):
        for message in messages:
            await asyncio.sleep(pause_s)
            yield message
