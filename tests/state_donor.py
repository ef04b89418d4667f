"""A donor that sends the messages of a test, for `donors.download` without a swarm."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

from auth_peers import identity
from hivemind.proto import averaging_pb2
from hivemind.utils import ValueWithExpiration
from torch import Tensor

from dalle_lib.swarm.averaging import donors
from dalle_lib.swarm.averaging.donors import ExpectedState
from dalle_lib.swarm.averaging.trust import Trust, owner_key

DONOR = owner_key(identity("donor").public_key)
"""The donor's mark in the hash table."""


def download_from(
    messages: AsyncIterator[averaging_pb2.DownloadData], expected: ExpectedState, timeout_s: float
) -> tuple[tuple[dict, list[Tensor]] | None, list[str]]:
    """Return what `donors.download` makes of a donor's messages, and what it tells of that donor."""
    told = []

    async def rpc_download_state(_request: averaging_pb2.DownloadRequest):
        return messages

    async def get(*_, **__):
        return ValueWithExpiration({DONOR: ValueWithExpiration(expected.min_epoch, 0.0)}, 0.0)

    averager = SimpleNamespace(
        trust=Trust(),
        tell=lambda _peer, what: told.append(what),
        dht=SimpleNamespace(get=get),
        get_stub=lambda *_, **__: SimpleNamespace(rpc_download_state=rpc_download_state),
        prefix="run_state_averager",
        peer_id=None,
        gave_no_state={},
        _p2p=None,
    )
    return asyncio.run(donors.download(averager, expected, timeout_s)), told
