"""What the callers of a peer may keep open at it, in each of its processes, and what becomes of calls given up.

hivemind 1.1.12 answers any number of streams at once, each of which may hold some messages in memory, and keeps half a
kilobyte for ever of each call that its caller calls off. Where an answer comes at the very moment in which this peer
gives up its call, as on a machine that is too busy, the process hears nothing more from its network daemon: no answer,
and no call. `install` replaces this in this process and its forks.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from uuid import UUID

from google.protobuf.message import Message
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.proto import p2pd_pb2
from hivemind.utils.asyncio import achain, as_aiter

logger = logging.getLogger(__name__)

MAX_STREAMS, MAX_STREAMS_OF_ONE = 256, 8
"""Streams that are open at once in a process, of all callers and of one. In a round, each peer of a group has one."""
MAX_STREAMS_OF_STRANGERS, MAX_STREAMS_OF_ONE_STRANGER = 128, 2
"""The same of callers that are not known as members, in a run that has members."""
MAX_SILENT, MAX_SILENT_OF_ONE = 1024, 4
"""Streams in which nothing has come yet: of all members, and of all others, beside MAX_STREAMS; of one caller among its
MAX_STREAMS_OF_ONE. One more of all closes the one of its kind that has been silent for longest: whoever opens a stream
to send something does so at once."""
MAX_CALLS_OF_ONE = 64
"""Short calls of one caller that are answered at once."""
MAX_CALL_BYTES, MAX_CALL_BYTES_OF_ONE = 2**26, 2**22
"""Bytes of the short calls that are answered at once, of all callers and of one. Few have more than a kilobyte."""
FIRST_S = 10.0
"""Seconds after which a stream is closed whose caller has sent nothing."""
PREFETCH = 2
"""Messages of a stream that wait for the one before. With fewer, a caller that hangs up after one is not noticed."""
_stock_streams, _stock_call = P2P._add_protobuf_stream_handler, ControlClient._handle_persistent_request
_stock_connect = ControlClient._ensure_persistent_conn


class Callers:
    """Counts what each caller has open."""

    def __init__(self, of_all: float, of_one: float) -> None:
        self._open, self._of_all, self._of_one = Counter(), of_all, of_one

    @contextlib.contextmanager
    def admitted(self, caller: PeerID, amount: int = 1) -> Iterator[bool]:
        """Count this much more of a caller while this context is open, and return whether that is within the limits."""
        is_admitted = self._open[caller] + amount <= self._of_one and self._open.total() + amount <= self._of_all
        if is_admitted:
            self._open[caller] += amount
        try:
            yield is_admitted
        finally:
            if is_admitted:
                self._open[caller] -= amount
            if not self._open[caller]:
                del self._open[caller]


def install() -> None:
    """Make hivemind limit what callers keep open, in this process and in its forks."""
    P2P._add_protobuf_stream_handler = _add_streams
    ControlClient._handle_persistent_request = _answer_call
    ControlClient._ensure_persistent_conn = _connect


class PendingCalls(dict[UUID, asyncio.Future]):
    """The calls whose answers a process waits for: none that was given up, or answered, a moment ago.

    hivemind looks whether a call is among them, and then answers it, which raises InvalidStateError for such a one.
    """

    def __contains__(self, call_id: object) -> bool:
        return super().__contains__(call_id) and not self[call_id].done()


async def _connect(self: ControlClient) -> None:
    """Connect to the network daemon as hivemind does, to hear from it whatever becomes of calls."""
    self._pending_calls = PendingCalls()
    await _stock_connect(self)


def members_first(is_member: Callable[[PeerID], bool]) -> None:
    """Keep half of the streams of this process and its forks for callers for which `is_member` holds."""
    global _is_member
    _is_member = is_member


_is_member: Callable[[PeerID], bool] | None = None
"""Says whether a caller is known as a member; None in a run without members."""
_streams = Callers(MAX_STREAMS, math.inf)
_strangers = Callers(MAX_STREAMS_OF_STRANGERS, MAX_STREAMS_OF_ONE_STRANGER)
_streams_of_one = Callers(math.inf, MAX_STREAMS_OF_ONE)
_silent_of_one = Callers(math.inf, MAX_SILENT_OF_ONE)
_silent: dict[bool, dict[AsyncIterator[Message], asyncio.Timeout]] = {False: {}, True: {}}
"""What ends each stream in which nothing has come yet, in the order of their opening, by whether a member opened it."""
_calls = Callers(math.inf, MAX_CALLS_OF_ONE)
_call_bytes = Callers(MAX_CALL_BYTES, MAX_CALL_BYTES_OF_ONE)


async def _add_streams(
    self: P2P,
    name: str,
    handler: Callable[[AsyncIterator[Message], P2PContext], AsyncIterator[Message]],
    input_protobuf_type: type[Message],
    max_prefetch: int = PREFETCH,
    balanced: bool = False,
) -> None:
    """Answer streams as hivemind does; one beyond the limits is closed at once, and one that is silent soon."""

    async def answer(requests: AsyncIterator[Message], context: P2PContext) -> AsyncIterator[Message]:
        caller = context.remote_id
        with _streams_of_one.admitted(caller) as is_one_more:
            if not is_one_more or (first := await _first_of(requests, caller)) is None:
                logger.info("a stream of %s is closed: too many are open, or nothing came", caller)
                return
            is_stranger = _is_member is not None and not _is_member(caller)
            with _streams.admitted(caller) as has_room, _strangers.admitted(caller, int(is_stranger)) as is_admitted:
                if not (has_room and is_admitted):
                    logger.info("a stream of %s is closed: too many are open", caller)
                    return
                async with contextlib.aclosing(handler(achain(as_aiter(first), requests), context)) as responses:
                    async for response in responses:
                        yield response

    await _stock_streams(self, name, answer, input_protobuf_type, max_prefetch=max_prefetch, balanced=balanced)


async def _first_of(requests: AsyncIterator[Message], caller: PeerID) -> Message | None:
    """Return the first message of a stream, or None if none comes in time, or before too many others are opened."""
    silent = _silent[_is_member is not None and _is_member(caller)]
    with _silent_of_one.admitted(caller) as is_one_more, contextlib.suppress(TimeoutError):
        if not is_one_more:
            return None
        if len(silent) >= MAX_SILENT:
            with contextlib.suppress(RuntimeError):  # its time is over just now
                silent.pop(next(iter(silent))).reschedule(0.0)
        try:
            async with asyncio.timeout(FIRST_S) as silent[requests]:
                return await anext(requests, None)
        finally:
            silent.pop(requests, None)
    return None


async def _answer_call(self: ControlClient, call_id: UUID, request: p2pd_pb2.CallUnaryRequest) -> None:
    """Answer a short call as hivemind does, and forget it; one beyond the limits is told so."""
    try:
        caller, size = PeerID(request.peer), request.ByteSize()
        with _calls.admitted(caller) as is_one_more, _call_bytes.admitted(caller, size) as is_small:
            if is_one_more and is_small:
                await _stock_call(self, call_id, request)
            else:
                refusal = p2pd_pb2.CallUnaryResponse(error=b"too many calls at once")
                answer = p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, unaryResponse=refusal)
                await self._pending_messages.put(answer)
    finally:
        self._handler_tasks.pop(call_id, None)
