"""Slow and broken links on one machine: a relay in user space through which peers on 127.0.0.1 reach each other.

Each peer listens on a port that nobody is told, and announces a port of the relay. All that is sent to it passes its
download, and all that it sends passes its upload, also over connections that it has opened itself: the relay finds out
which peer is at the other end of a connection by the port that it comes from. It needs no root, and counts every byte.

A direction of a link is a queue: each piece waits until the ones before it are through, at the link's rate. Connections
take turns, and one whose receiver is slow keeps its sender waiting, as TCP does. What is cut off arrives later, as with
TCP, and nothing of TCP and IP is counted: rates and bytes are those of the data.
"""

import asyncio
import contextlib
import logging
import math
import random
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass

import psutil

logger = logging.getLogger(__name__)

LOCALHOST = "127.0.0.1"
BURST_S = 0.05
"""Seconds of its rate that a link catches up on after a late wake-up, or gives at once after a rest."""
PIECE_S, PIECE_BYTES = 0.01, (2**12, 2**16)
"""A piece is what a link carries in so many seconds, within these bounds: smaller ones keep the processor busy."""
QUEUE = 4
"""Pieces of a connection between its sender's link and its receiver's."""
BUFFER_BYTES = 2**17
"""Bytes that a socket of the relay keeps: with those of an operating system, a slow link would fill for seconds."""
PACKET_BYTES, AGAIN_S = 1448, 0.2
"""A packet of TCP, and the seconds after which a lost one is sent again: Linux waits no less for word of it."""
DIAL_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a peer's connection to the internet carries."""

    up_mbps: float
    """Rate of its upload in megabits a second."""
    down_mbps: float
    """Rate of its download in megabits a second."""
    delay_s: float = 0.0
    """Seconds that each byte is under way on it, up or down. Between two peers, those of both links add up."""
    loss: float = 0.0
    """Share of the packets that it loses, up or down; each holds up its connection until it is sent again."""

    def __post_init__(self) -> None:
        for name in "up_mbps", "down_mbps":
            if not 0 < (rate := getattr(self, name)) < math.inf:
                raise ValueError(f"Link.{name} must be above 0 and finite, but is {rate}.")
        for name, limit in ("delay_s", math.inf), ("loss", 1):
            if not 0 <= (value := getattr(self, name)) < limit:
                raise ValueError(f"Link.{name} must be at least 0 and below {limit}, but is {value}.")


class Direction:
    """One direction of a link: bytes go through one after another."""

    def __init__(self, mbps: float, delay_s: float = 0.0, loss: float = 0.0) -> None:
        self.bytes_per_s, self.delay_s, self.loss, self._random = mbps * 1e6 / 8, delay_s, loss, random.Random(0)
        self.bytes_through = 0
        """Bytes that have gone through since the link was made."""
        self._free_at = 0.0

    async def carry(self, count: int) -> float:
        """Return for how many seconds a lost packet holds up this many bytes more, once they are through."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_S) + count / self.bytes_per_s
        self.bytes_through += count
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        is_whole = self._random.random() < (1 - self.loss) ** math.ceil(count / PACKET_BYTES)
        return 0.0 if is_whole else AGAIN_S


class Plug:
    """A peer's end of its link, which the relay makes."""

    def __init__(self, link: Link) -> None:
        self.up, self.down = (Direction(mbps, link.delay_s, link.loss) for mbps in (link.up_mbps, link.down_mbps))
        with _listener() as free:
            self.listens_on: int = free.getsockname()[1]
            """The port on which the peer has to listen."""
        self.listener = _listener()
        self.announced: int = self.listener.getsockname()[1]
        """The port of the relay by which others reach the peer."""
        self.process: int | None = None
        """Id of the process that the peer's connections belong to, or that started the one; set it on starting it."""

    @property
    def listens_at(self) -> str:
        """The address on which the peer has to listen, as libp2p writes it."""
        return f"/ip4/{LOCALHOST}/tcp/{self.listens_on}"

    @property
    def announced_at(self) -> str:
        """The address by which others reach it, as libp2p writes it."""
        return f"/ip4/{LOCALHOST}/tcp/{self.announced}"


@dataclass(frozen=True, eq=False)
class _Connection:
    """A connection between the plugs `ends`, or to the one whose caller is nobody's."""

    ends: frozenset[Plug]
    task: asyncio.Task
    is_whole: asyncio.Event
    """Set unless it is cut."""


class Relay:
    """The network between the plugs of all peers; a context manager, which runs in a thread of its own.

    Connections of processes that belong to no plug pass the link of the peer that they reach, and no other: so do, on
    macOS without root, those that no libp2p has opened.
    """

    def __init__(self) -> None:
        self.plugs: list[Plug] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._tasks: set[asyncio.Task] = set()
        self._connections: set[_Connection] = set()
        self._cut: set[frozenset[Plug]] = set()
        """Plugs that are cut off, and pairs of plugs that are cut off from each other."""

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_error) -> None:
        self._call(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def plug(self, link: Link) -> Plug:
        """Return a new peer's end of a link. Start the peer to listen and announce what it says; set its process."""
        made = Plug(link)
        self.plugs.append(made)
        self._call(self._begin(self._accept(made))).result()
        return made

    def cut(self, plug: Plug, *others: Plug) -> None:
        """Let nothing pass between a plug and these others, or anybody if none is named.

        Connections stay open, and new ones open. Neither end hears anything of the other, nor that it closes one.
        """
        self._call(self._set({frozenset({plug, other}) for other in others or (plug,)}, set())).result()

    def mend(self, plug: Plug, *others: Plug) -> None:
        """Let all pass again that `cut` keeps from passing, beginning with what was sent meanwhile."""
        mended = {frozenset({plug, other}) for other in others} or {cut for cut in self._cut if plug in cut}
        self._call(self._set(set(), mended)).result()

    def hang_up(self, plug: Plug, *others: Plug) -> None:
        """End all connections between a plug and these others, or anybody if none is named; both ends are told."""
        self._call(self._hang_up(plug, frozenset(others))).result()

    async def _set(self, cut: set[frozenset[Plug]], mended: set[frozenset[Plug]]) -> None:
        self._cut = (self._cut | cut) - mended
        for connection in self._connections:
            if self._is_cut(connection.ends):
                connection.is_whole.clear()
            else:
                connection.is_whole.set()

    def _is_cut(self, ends: frozenset[Plug]) -> bool:
        return any(cut <= ends for cut in self._cut)

    async def _hang_up(self, plug: Plug, others: frozenset[Plug]) -> None:
        ended = [each for each in self._connections if plug in each.ends and (not others or others & each.ends)]
        for connection in ended:
            connection.task.cancel()
        await asyncio.gather(*(connection.task for connection in ended), return_exceptions=True)

    def _call(self, coroutine) -> Future:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _begin(self, coroutine) -> None:
        self._tasks.add(task := asyncio.create_task(coroutine))
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for plug in self.plugs:
            plug.listener.close()

    async def _accept(self, plug: Plug) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, (_host, port) = await loop.sock_accept(plug.listener)
            connection.setblocking(False)
            await self._begin(self._connect(connection, port, plug))

    async def _connect(self, caller: socket.socket, port: int, called: Plug) -> None:
        """Carry what a connection to a peer brings, both ways, until both ends have closed it."""
        with caller, _socket() as onward:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(DIAL_S):
                    await loop.sock_connect(onward, (LOCALHOST, called.listens_on))
            except OSError:  # the peer is gone; TimeoutError is one too
                return
            calling = await asyncio.to_thread(self._owner, port)
            there = [calling.up] if calling else [], [called.down]
            back = [called.up], [calling.down] if calling else []
            ends = frozenset({calling or called, called})
            connection = _Connection(ends, asyncio.current_task(), is_whole := asyncio.Event())
            self._connections.add(connection)
            await self._set(set(), set())
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_carry(caller, onward, *there, is_whole))
                    both.create_task(_carry(onward, caller, *back, is_whole))
            except* OSError as errors:
                logger.debug("a connection to port %d broke off: %s", called.listens_on, errors.exceptions)
            finally:
                self._connections.discard(connection)

    def _owner(self, port: int) -> Plug | None:
        """Return whose connection comes from this port; None if it is nobody's, or this system does not tell."""
        for plug in self.plugs:
            if plug.listens_on == port:  # libp2p dials from the port on which it listens
                return plug
        with contextlib.suppress(psutil.Error, StopIteration):
            dialled = psutil.Process(
                next(o.pid for o in psutil.net_connections("tcp4") if o.pid and o.laddr.port == port)
            )
            processes = {process.pid for process in (dialled, *dialled.parents())}
            return next(plug for plug in self.plugs if plug.process in processes)
        return None


async def _carry(
    source: socket.socket, sink: socket.socket, first: list[Direction], second: list[Direction], is_whole: asyncio.Event
) -> None:
    """Carry bytes one way over the sender's link and then the receiver's, until the sender has no more.

    Nothing arrives while the connection is cut, neither bytes nor its end.
    """
    loop = asyncio.get_running_loop()
    slowest = min((one.bytes_per_s for one in (*first, *second)), default=0.0)
    piece_bytes = int(min(max(slowest * PIECE_S, PIECE_BYTES[0]), PIECE_BYTES[1]))
    delay_s = sum(one.delay_s for one in (*first, *second))
    under_way = math.ceil(delay_s * slowest / piece_bytes)
    between: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE + under_way)

    async def send() -> None:
        try:
            while piece := await loop.sock_recv(source, piece_bytes):
                late_s = delay_s
                for direction in first:
                    late_s += await direction.carry(len(piece))
                await between.put((loop.time() + late_s, piece))
        except OSError:
            await is_whole.wait()
            raise
        await between.put((loop.time() + delay_s, b""))

    async def receive() -> None:
        piece = None
        while piece != b"":
            due, piece = await between.get()
            if due > (now := loop.time()):
                await asyncio.sleep(due - now)
            for direction in second:
                await asyncio.sleep(await direction.carry(len(piece)))
            await is_whole.wait()
            await loop.sock_sendall(sink, piece)
        sink.shutdown(socket.SHUT_WR)

    async with asyncio.TaskGroup() as both:
        both.create_task(send())
        both.create_task(receive())


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _listener() -> socket.socket:
    made = _socket()  # whose buffers the connections that it accepts inherit
    made.bind((LOCALHOST, 0))
    made.listen(128)
    return made
