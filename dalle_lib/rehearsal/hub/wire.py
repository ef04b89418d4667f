"""How the stand-in for the Hub is served: in a thread, with a log of requests, faults on demand and a rate limit."""

import asyncio
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate

import uvicorn

PIECE_BYTES = 16 << 10
"""Bodies pass in pieces of at most this size, so that rates are even and cuts are exact."""


@dataclass
class Fault:
    """What goes wrong with each request in whose "METHOD /path" the regular expression `where` is found.

    The first fault that fits a request is the only one. It stays in force until it has met `times` requests or until
    `seconds` have passed since it was made.
    """

    where: str = ""
    times: float = math.inf
    seconds: float = math.inf
    status: int | None = None
    """Answer with this HTTP status, whatever was asked."""
    retry_after: int | None = None
    """Seconds in the Retry-After header of that answer."""
    silent: bool = False
    """Close the connection without an answer."""
    delay_s: float = 0.0
    """Wait this long before anything else."""
    cut_after: float = math.inf
    """Close the connection after so many bytes of a body, be it uploaded or downloaded."""
    rate: float = math.inf
    """Let no more than so many bytes of a body pass in a second."""
    drop_last: int = 0
    """Leave out the last bytes of a download, whose Content-Length then is that of the rest."""
    damaged: bool = False
    """Invert the first bytes of a download."""
    made_at: float = field(default_factory=time.monotonic)

    def meets(self, request: str) -> bool:
        """Return whether this fault meets a request, and count it if so."""
        is_over = self.times <= 0 or time.monotonic() > self.made_at + self.seconds
        if is_over or not re.search(self.where, request):
            return False
        self.times -= 1
        return True


@dataclass
class Logged:
    """A request that came: `sent` and `received` are the bytes of bodies; `status` is 0 while there is no answer."""

    method: str
    path: str
    query: str
    range: str
    status: int = 0
    sent: int = 0
    received: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Pace:
    """Lets bytes pass at a rate, however many callers share it."""

    def __init__(self) -> None:
        self.is_free_at = 0.0

    async def wait(self, size_bytes: int, rate: float) -> None:
        now = time.monotonic()
        self.is_free_at = max(self.is_free_at, now) + size_bytes / rate
        if self.is_free_at > now:
            await asyncio.sleep(self.is_free_at - now)


class Exchange:
    """One request and its answer on their way between the connection and the application."""

    def __init__(self, wire: "Wire", scope: dict, receive: Callable, send: Callable) -> None:
        self.wire, self.scope, self.pace, self.is_cut = wire, scope, Pace(), False
        self.from_client, self.to_client = receive, send
        headers = dict(scope["headers"])
        self.logged = Logged(
            scope["method"], scope["path"], scope["query_string"].decode(), headers.get(b"range", b"").decode()
        )
        wire.log.append(self.logged)
        self.fault = next((fault for fault in wire.faults if fault.meets(str(self.logged))), Fault())
        self.left = math.inf  # bytes of the download that are still to be sent

    async def run(self) -> None:
        await asyncio.sleep(self.fault.delay_s)
        if self.fault.silent:
            self.cut()
        elif self.fault.status is not None:
            await self.refuse()
        else:
            await self.wire.app(self.scope, self.receive, self.send)

    def cut(self) -> None:
        """Close the connection. What the application still sends is dropped."""
        self.is_cut = True
        self.to_client.__self__.transport.close()  # ASGI has no way to do so; `send` is a method of uvicorn's exchange

    async def refuse(self) -> None:
        uploads = True
        while uploads:  # a client that is still uploading would not see the answer
            uploads = (await self.receive()).get("more_body", False)
        headers = [(b"content-length", b"0")]
        if self.fault.retry_after is not None:
            headers.append((b"retry-after", str(self.fault.retry_after).encode()))
        await self.send({"type": "http.response.start", "status": self.fault.status, "headers": headers})
        await self.send({"type": "http.response.body"})

    async def carry(self, piece: bytes, carried: int) -> bytes:
        """Return as much of `piece` as the fault lets pass after `carried` bytes, at the time at which it may."""
        if len(piece) > self.fault.cut_after - carried:
            piece, self.is_cut = piece[: int(self.fault.cut_after) - carried], True
        await self.wire.pace.wait(len(piece), self.wire.rate)
        await self.pace.wait(len(piece), self.fault.rate)
        return piece

    async def receive(self) -> dict:
        message = await self.from_client()
        if not message.get("body") or self.is_cut:
            return message
        body = message["body"]
        for start in range(0, len(body), PIECE_BYTES):
            piece = await self.carry(body[start : start + PIECE_BYTES], self.logged.received)
            self.logged.received += len(piece)
            if self.is_cut:
                self.cut()
                return {"type": "http.disconnect"}
        return message

    async def send(self, message: dict) -> None:
        if self.is_cut:
            return
        if message["type"] == "http.response.start":
            await self.send_start(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), PIECE_BYTES):
            await self.send_piece(body[start : start + PIECE_BYTES], more or start + PIECE_BYTES < len(body))

    async def send_start(self, message: dict) -> None:
        self.logged.status = message["status"]
        headers = dict(message["headers"])
        headers[b"date"] = formatdate(time.time() + self.wire.clock_shift_s, usegmt=True).encode()
        if self.fault.drop_last and self.logged.method == "GET":
            self.left = max(int(headers[b"content-length"]) - self.fault.drop_last, 0)
            headers[b"content-length"] = str(self.left).encode()
        await self.to_client({**message, "headers": list(headers.items())})

    async def send_piece(self, piece: bytes, more: bool) -> None:
        if self.is_cut:
            return
        if self.left < len(piece):
            piece = piece[: self.left]
        self.left -= len(piece)
        if self.fault.damaged and not self.logged.sent:
            piece = bytes(byte ^ 0xFF for byte in piece)
        piece = await self.carry(piece, self.logged.sent)
        self.logged.sent += len(piece)
        await self.to_client({"type": "http.response.body", "body": piece, "more_body": more or self.is_cut})
        if self.is_cut:
            self.cut()


def deaf_socket(port: int) -> socket.socket:
    """Return a socket that keeps a port of 127.0.0.1 from others; connections are refused there until it listens."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    return kept


class _Server(uvicorn.Server):
    """A server that does not wait for its clients when it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


class Wire:
    """Serves the application `app` at `url` while this context is entered."""

    def __init__(self, app: Callable, port: int = 0) -> None:
        self.app, self.port = app, port
        self.log: list[Logged] = []
        self.faults: list[Fault] = []
        self.pace, self.rate = Pace(), math.inf
        self.clock_shift_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        await Exchange(self, scope, receive, send).run()

    def __enter__(self) -> "Wire":
        self._serve(socket.create_server(("127.0.0.1", self.port)))
        return self

    def _serve(self, listening: socket.socket) -> None:
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self, http="h11", ws="none", loop="asyncio", lifespan="off", log_config=None, log_level="critical",
            proxy_headers=False, date_header=False, server_header=False, timeout_keep_alive=60,
            timeout_graceful_shutdown=0,
        )  # fmt: skip
        self.server = _Server(config)
        self.thread = threading.Thread(target=self.server.run, args=[[listening]], name="stand-in hub")
        self.thread.start()
        while not self.server.started and self.thread.is_alive():
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Refuse connections, as a machine that is off does. What was stored is there afterwards."""
        self.__exit__()
        with ExitStack() as unless_it_comes_back:
            kept = unless_it_comes_back.enter_context(deaf_socket(self.port))
            yield
            unless_it_comes_back.pop_all()
        kept.listen()
        self._serve(kept)

    def requests(self, where: str = "") -> list[Logged]:
        """Return the logged requests in whose "METHOD /path" the regular expression `where` is found."""
        return [logged for logged in self.log if re.search(where, str(logged))]
