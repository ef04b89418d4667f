"""What a bootstrap peer does for newcomers: it dials them back, and measures how fast their upload reaches it.

Newcomers have not shown that they are members, so this module bounds what all calls together can cost: a few
connections to a caller's own address, for few callers at once, and one upload at a time, counted up to `MAX_BYTES`.
Callers are told apart by their addresses, because anybody can have many identities. A newcomer refuses in turn what a
first peer cannot have seen.
"""

import asyncio
import contextlib
import json
import math
import os
import threading
import time

import hivemind
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo, StreamInfo
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from hivemind.utils.multiaddr import Multiaddr

from dalle_lib.auth.clocks import seconds_ahead

MAX_BYTES = 8_000_000
"""An upload is counted up to this size; an uploader sends no more."""
CHUNK = 50_000
UPLOAD_S = 5.0
"""An upload is counted for at most this long."""
MAX_UPLOADERS = 3
"""Addresses that may hold or await the place of the one upload that is measured; each of them holds it in turn."""
HANG_UP_S = 3.0
"""Seconds that a caller has to read the last answer and to hang up."""
MAX_REFUSED = 16
"""Refused uploaders that may be reading their refusal at once; further ones are disconnected without an answer."""
MAX_TIME = 1e11
"""No clock shows so many seconds since 1970."""
ANSWER_TIMEOUT_S = 20.0
MAX_PORTS = 4
DIAL_TIMEOUT_S = 5.0
REDIAL_S = 1.0
"""Seconds for which an address that was dialled back is not dialled again: many callers may share it."""
MAX_DIALLED = 32
"""Newcomers that are dialled back at once, each at an address of its own; further ones are refused."""
MAX_REQUEST = 1000
"""A longer request to be dialled back is refused unread: reading 3 MB of JSON would hold up all others for a second."""
_UPLOAD = "Greeter.upload"
_HELLO = b"\x13/multistream/1.0.0\n"
"""What every libp2p peer says first to whoever connects."""


class Busy(RuntimeError):
    """This peer dials as many others back as it can."""


class NotMeasured(RuntimeError):
    """A first peer did not measure the upload."""


class Greeter(ServicerBase):
    """Answers newcomers by way of the p2pd that `p2p` belongs to."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p
        self._one_upload = asyncio.Lock()
        self._uploaders: set[str] = set()
        self._refused = asyncio.Semaphore(MAX_REFUSED)
        self._dialled: set[str] = set()
        self._listing: asyncio.Task | None = None

    async def serve(self) -> None:
        """Begin to answer."""
        await self.add_p2p_handlers(self._p2p)
        await self._p2p.add_binary_stream_handler(_UPLOAD, self._measure_upload)

    async def rpc_dial_back(self, request: ExpertRequest, context: P2PContext) -> ExpertResponse:
        """Answer with `time`, this machine's clock, and `reached`: the first of the caller's ports that accepts us.

        Only the address that the caller is connected from is dialled, for one caller at a time. `reached` is 0 if no
        port accepts, and None if the caller comes through a relay, which hides its address.

        Raises Busy if too many ask at once, and ValueError if the request is too long or names no ports; hivemind tells
        the caller.
        """
        if request.ByteSize() > MAX_REQUEST:
            raise ValueError(f"expected a request of at most {MAX_REQUEST} bytes, but it has {request.ByteSize()}")
        if not isinstance(ports := _object_in(request.metadata).get("ports"), list):
            raise ValueError("expected a request that names a list of ports")
        ports = [port for port in ports[:MAX_PORTS] if type(port) is int and 0 < port < 2**16]
        reached = await self._first_that_accepts(await self._address_of(context.remote_id), ports)
        return ExpertResponse(metadata=json.dumps({"time": time.time(), "reached": reached}).encode())

    async def _first_that_accepts(self, address: str | None, ports: list[int]) -> int | None:
        if address is None:
            return None
        if len(self._dialled) >= MAX_DIALLED:
            raise Busy("it dials too many others back: try again in a minute")
        if address in self._dialled:
            raise Busy("it dials another peer at your address back: try again in a minute")
        self._dialled.add(address)
        try:
            accepts = await asyncio.gather(*(_is_libp2p(address, port) for port in ports))
        finally:
            asyncio.get_running_loop().call_later(REDIAL_S, self._dialled.remove, address)
        return next((port for port, accepted in zip(ports, accepts, strict=True) if accepted), 0)

    async def _measure_upload(
        self, stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer an uploader with two lines of JSON: whether it may send, then what was counted.

        An uploader sends nothing before the first line. A refused one gets `{"refused": why}`, any other `{}` when its
        turn has come, sends until the second line arrives, `{"bytes": ..., "seconds": ...}`, and hangs up. Of several
        uploaders at one address, one awaits its turn and the others are refused.

        p2pd resets a stream whose answering side closes first, and the last answer may be lost. So the caller hangs
        up; it is cut off after HANG_UP_S or when it sends what it should not.
        """
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, TimeoutError):
            if (uploader := _host(stream.addr)) not in self._uploaders and len(self._uploaders) < MAX_UPLOADERS:
                self._uploaders.add(uploader)
                try:
                    async with self._one_upload:
                        _write_line(writer, {})
                        counted = await _count(reader)
                finally:
                    self._uploaders.remove(uploader)
                _write_line(writer, counted)
                await _until_hung_up(reader, MAX_BYTES)
            elif not self._refused.locked():
                async with self._refused:
                    _write_line(writer, {"refused": "it measures the upload of another peer: try again in a minute"})
                    await _until_hung_up(reader, 0)

    async def _address_of(self, peer: PeerID) -> str | None:
        for _ in range(2):  # the list that others wait for may be older than this peer's connection
            for connected in await self._connected():
                for address in connected.addrs:
                    if connected.peer_id == peer and "p2p-circuit" not in str(address):
                        return _host(address)
        return None

    async def _connected(self) -> tuple[PeerInfo, ...]:
        """Return who is connected: one list at a time, for all who wait for one."""
        # A caller that hangs up cancels its call, and hivemind 1.1.12 never closes the socket of a cancelled list.
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._p2p.list_peers())
        return await asyncio.shield(self._listing)


async def dial_back(p2p: P2P, peer: PeerID, ports: list[int]) -> dict:
    """Return `reached` as `peer` answers when asked to dial us back, and `ahead`: by how many seconds our clock is.

    Raises ValueError for an answer that cannot be true, and P2PHandlerError with the reason if `peer` refuses.
    """
    request = ExpertRequest(metadata=json.dumps({"ports": ports}).encode())
    asked = time.time()
    answer = await Greeter.get_stub(p2p, peer).rpc_dial_back(request, timeout=(MAX_PORTS + 1) * DIAL_TIMEOUT_S)
    match _object_in(answer.metadata):
        case {"time": float(told), "reached": reached} if 0 <= told < MAX_TIME and reached in (None, 0, *ports):
            return {"reached": reached, "ahead": seconds_ahead(asked, told, time.time())}
    raise ValueError(f"it did not answer with the time and which of {ports} it reached")


async def upload_mbps(p2p: P2P, peer: PeerID) -> float:
    """Return how many megabits a second reach `peer` from here. At most MAX_BYTES are sent, for about UPLOAD_S.

    Raises NotMeasured if `peer` refuses, hangs up or answers something else, and TimeoutError if it stays silent.
    """
    _, reader, writer = await p2p.call_binary_stream_handler(peer, _UPLOAD)
    with contextlib.closing(writer):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            if (refusal := (await _read_line(reader)).get("refused")) is not None:
                raise NotMeasured(refusal)
            sending = asyncio.create_task(_send(writer))
            try:
                counted = await _read_line(reader)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    match counted:
        case {"bytes": int(sent), "seconds": float(seconds)} if 0 <= sent <= MAX_BYTES and 0 <= seconds < math.inf:
            return 8e-6 * sent / max(seconds, 1e-6)
    raise NotMeasured("it did not answer how many bytes it counted in how many seconds")


def greet(dht: hivemind.DHT, stop: threading.Event) -> None:
    """Greet newcomers until `stop` is set."""

    async def serve() -> None:
        await Greeter(await dht.replicate_p2p()).serve()
        await asyncio.to_thread(stop.wait)

    asyncio.run(serve())


async def _count(reader: asyncio.StreamReader) -> dict:
    """Return how many bytes came after the first that came together, and how many seconds they took."""
    first = received = 0
    started = time.perf_counter()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(UPLOAD_S):
            while received < MAX_BYTES and (chunk := await reader.read(CHUNK)):
                if received == 0:
                    first, started = len(chunk), time.perf_counter()
                received += len(chunk)
    return {"bytes": received - first, "seconds": time.perf_counter() - started}


async def _send(writer: asyncio.StreamWriter) -> None:
    chunk = os.urandom(CHUNK)
    for _ in range(MAX_BYTES // CHUNK):
        writer.write(chunk)
        await writer.drain()


async def _until_hung_up(reader: asyncio.StreamReader, tolerated: int) -> None:
    """Return when the other side has hung up, has sent more than `tolerated` bytes, or HANG_UP_S have passed."""
    async with asyncio.timeout(HANG_UP_S):
        while tolerated >= 0 and (chunk := await reader.read(CHUNK)):
            tolerated -= len(chunk)


def _host(address: Multiaddr) -> str:
    """Return the address of a machine, or of the relay through which it is connected, from /ip4/..."""
    return str(address).split("/")[2]


def _write_line(writer: asyncio.StreamWriter, fields: dict) -> None:
    writer.write(json.dumps(fields).encode() + b"\n")


async def _read_line(reader: asyncio.StreamReader) -> dict:
    try:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise NotMeasured("it hung up before it answered")
        return _object_in(line)
    except ValueError as error:
        raise NotMeasured(f"it answered with something else: {error}") from error


def _object_in(message: bytes) -> dict:
    """Return the JSON object in what another peer sent. Raises ValueError for anything else."""
    try:
        if isinstance(told := json.loads(message), dict):
            return told
    except RecursionError:
        told = "lists within lists"
    raise ValueError(f"expected a JSON object, but got {told!r:.40}")


async def _is_libp2p(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address, port)
            with contextlib.closing(writer):
                return await reader.readexactly(len(_HELLO)) == _HELLO
    except (OSError, EOFError):
        return False
