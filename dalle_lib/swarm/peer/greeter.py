"""What a bootstrap peer does for those who have not joined yet: it dials them back, and counts what they send.

It asks for no membership, so what one call can cost is bounded here: a few connections to the caller's own address,
and one upload at a time of at most MOST bytes.
"""

import asyncio
import contextlib
import json
import os
import threading
import time
from typing import AsyncIterator  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

import hivemind
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse, Tensor

from dalle_lib.auth.clocks import seconds_ahead

MOST = 8_000_000
"""Bytes of an upload that are counted; what comes after them is not read."""
CHUNK = 2**16
MOST_PORTS = 4
DIAL_TIMEOUT_S = 5.0
UPLOAD_TIMEOUT_S = 20.0
_HELLO = b"\x13/multistream/1.0.0\n"
"""What every libp2p peer says first to whoever connects."""


class Greeter(ServicerBase):
    """Answers newcomers by way of the p2pd that `p2p` belongs to."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p
        self._one_upload = asyncio.Lock()

    async def rpc_dial_back(self, request: ExpertRequest, context: P2PContext) -> ExpertResponse:
        """Answer with `time`, this machine's clock, and `reached`: the one of the caller's ports that accepts us.

        Only the address that the caller is connected from is dialled; `reached` is 0 if no port accepts, None if the
        caller comes through a relay, so that its address is not known.
        """
        ports = [port for port in json.loads(request.metadata)["ports"][:MOST_PORTS] if 0 < port < 2**16]
        address = await self._address_of(context.remote_id)
        open_ports = [port for port in ports if address is not None and await _is_libp2p(address, port)]
        reached = None if address is None else next(iter(open_ports), 0)
        return ExpertResponse(metadata=json.dumps({"time": time.time(), "reached": reached}).encode())

    async def rpc_count(self, chunks: AsyncIterator[Tensor], context: P2PContext) -> ExpertResponse:
        """Answer with `bytes`, how many came after the first chunk, and `seconds`, how long they took to come."""
        if self._one_upload.locked():
            raise RuntimeError("it measures the upload of another peer: try again in a minute")
        started, received = None, 0
        async with self._one_upload:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                    async for chunk in chunks:
                        if started is None:
                            started = time.perf_counter()
                        elif (received := received + len(chunk.buffer)) >= MOST:
                            break
        seconds = time.perf_counter() - started if started else 0.0
        return ExpertResponse(metadata=json.dumps({"bytes": received, "seconds": seconds}).encode())

    async def _address_of(self, peer: PeerID) -> str | None:
        for connected in await self._p2p.list_peers():
            for address in map(str, connected.addrs):
                if connected.peer_id == peer and "p2p-circuit" not in address:
                    return address.split("/")[2]
        return None


async def dial_back(p2p: P2P, peer: PeerID, ports: list[int]) -> dict:
    """Return what `peer` answers when it is asked to dial us back, and `ahead`: by how many seconds our clock is."""
    request = ExpertRequest(metadata=json.dumps({"ports": ports}).encode())
    asked = time.time()
    answer = await Greeter.get_stub(p2p, peer).rpc_dial_back(request, timeout=(MOST_PORTS + 1) * DIAL_TIMEOUT_S)
    told = json.loads(answer.metadata)
    return {"reached": told["reached"], "ahead": seconds_ahead(asked, told["time"], time.time())}


async def upload_mbps(p2p: P2P, peer: PeerID, seconds: float = 5.0) -> float:
    """Return how many megabits a second reach `peer` from here, sending for at most `seconds` or MOST bytes."""
    enough, chunk = time.perf_counter() + seconds, Tensor(buffer=os.urandom(CHUNK))

    async def chunks() -> AsyncIterator[Tensor]:
        for _ in range(MOST // CHUNK):
            yield chunk
            if time.perf_counter() > enough:
                break

    counted = await Greeter.get_stub(p2p, peer).rpc_count(chunks(), timeout=2 * UPLOAD_TIMEOUT_S)
    told = json.loads(counted.metadata)
    return 8e-6 * told["bytes"] / max(told["seconds"], 1e-6)


def greet(dht: hivemind.DHT, stop: threading.Event) -> None:
    """Greet newcomers until `stop` is set."""

    async def serve() -> None:
        p2p = await dht.replicate_p2p()
        await Greeter(p2p).add_p2p_handlers(p2p)
        await asyncio.to_thread(stop.wait)

    asyncio.run(serve())


async def _is_libp2p(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address, port)
            with contextlib.closing(writer):
                return await reader.readexactly(len(_HELLO)) == _HELLO
    except (OSError, EOFError):
        return False
