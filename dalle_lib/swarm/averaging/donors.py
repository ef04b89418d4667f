"""Downloads the state of another peer, if that peer may give it and the state can be right; and lines up newcomers."""

import asyncio
import logging
import math
import multiprocessing
import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming
from torch import Tensor

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.group_keys import records_under
from dalle_lib.swarm.bounded import put

logger = logging.getLogger(__name__)

MAX_OVERHEAD = 1.1
"""Bytes of a state on the wire, at most, as a multiple of the bytes of its tensors; 1 MiB may be added."""
MESSAGE_BYTES = 1024
"""What each message of a donor counts for at least, so that empty ones come to an end; a tensor may have one more."""
SLOWEST_BYTES_PER_S = 100_000
"""A donor that is slower over the whole of its state is given up, and a newcomer that takes it more slowly."""
ROOM = 1.25
"""A donor with a limit gives each newcomer at least this multiple of that pace."""
PARAMETER_BYTES = 12
"""Bytes of a state for each parameter, at most: a float32 and two float32 of statistics."""
MAX_DONORS = 8
"""Users of whom one peer each is asked for its state, one after another."""
MAX_OFFERS, LOOK_UP_AT_ONCE = 256, 32
"""Peers that offer a state and are looked up, at most, and at once. One without an access token takes no place."""
MAX_TURNS, TURNS_S = 4, 3600.0
"""How often a newcomer gets the state within so many seconds: more often is traffic that a volunteer may have to pay
for. One that starts again and again asks other donors."""
MAX_REMEMBERED = 1024
"""Newcomers of which a donor remembers when they got the state."""
MAX_DOWNLOADS, MAX_WAITING = 4, 8
"""Newcomers that get a peer's state at a time, each a copy of it in memory, and that wait for their turn."""
TELL_PLACE_S = 1.0
"""Seconds between two messages to a newcomer that waits."""
MAX_WAIT_S = 300.0
"""A donor that lets this peer wait for longer, all together, is given up."""
MAX_PLACE = 1000
"""Place in a line beyond which a donor's word is no place."""
TELL_EVERY_S = 2.0
"""Seconds between two words of a download to whoever waits for it."""
ASKED_LAST_S = 1800.0
"""Seconds in which a user whose donor gave no state that could be used is asked after all others, and so is the donor
after the user's others."""


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

    def misfit(self, number: int, dtype: str, shape: tuple[int, ...]) -> str | None:
        """Return why a tensor that comes after so many others cannot be right, or None if it can."""
        if number >= len(self.tensors):
            return f"it has more than {len(self.tensors)} tensors"
        expected_shape, expected = self.tensors[number]
        if (dtype, shape) != (str(expected), expected_shape):
            return f"its tensor {number} is {dtype:.40} {shape!s:.80}, expected {expected} {expected_shape}"
        return None

    def problem(self, metadata: Any, tensors: list[Tensor]) -> str | None:
        """Return why a state cannot be right, or None if it can."""
        epoch = metadata.get("epoch") if isinstance(metadata, dict) else None
        if type(epoch) is not int or not self.min_epoch <= epoch <= self.max_epoch:
            return f"its epoch is {epoch!r:.40}, expected {self.min_epoch} to {self.max_epoch}"
        if len(tensors) != len(self.tensors):
            return f"it has {len(tensors)} tensors, expected {len(self.tensors)}"
        for number, tensor in enumerate(tensors):
            if problem := self.misfit(number, str(tensor.dtype), tuple(tensor.shape)):
                return problem
            if tensor.is_floating_point() and not tensor.isfinite().all():
                return f"its tensor {number} holds NaN or infinity"
        return None


@dataclass(frozen=True)
class Taking:
    """How it stands with a state that this peer takes over."""

    source: str
    """Id of the donor."""
    place: int | None = None
    """Newcomers before this one in the donor's line; 0 while the donor averages, None while it gives."""
    wait_s: float = 0.0
    """About how many seconds that takes, as the donor says; 0 if it does not know."""
    share: float = 0.0
    """Share of the state that is here."""


def states_at_once(bytes_per_s: float) -> int:
    """Return how many newcomers a donor that sends so fast gives its state at a time; 0 if it would be given up."""
    return int(min(MAX_DOWNLOADS, bytes_per_s / (ROOM * SLOWEST_BYTES_PER_S)))


class Line:
    """The newcomers that ask for this peer's state: the first few get it, the others wait for their turn."""

    def __init__(self, at_once: int = MAX_DOWNLOADS) -> None:
        self.at_once = at_once
        """How many get the state at a time; at 0 nobody does."""
        self._began: dict[PeerID, float | None] = {}
        """When each began to get the state, in seconds of `time.monotonic`, None if it waits; the first comes first."""
        self._turns: dict[PeerID, list[float]] = {}
        """When each got the state, in the same seconds."""
        self._last_s, self._length = 0.0, multiprocessing.Value("i", 0)

    @property
    def length(self) -> int:
        """How many newcomers are in the line, which the process that made it can ask, too."""
        return self._length.value

    def join(self, newcomer: PeerID) -> bool:
        """Return whether a newcomer is now the last in the line.

        Not if it is in it already, the line is full, or it had its MAX_TURNS.
        """
        if self.at_once == 0 or newcomer in self._began or len(self._began) >= self.at_once + MAX_WAITING:
            return False
        if sum(began > time.monotonic() - TURNS_S for began in self._turns.get(newcomer, ())) >= MAX_TURNS:
            return False
        self._began[newcomer] = None
        self._length.value = len(self._began)
        return True

    def place_of(self, newcomer: PeerID) -> int:
        """Return how many newcomers have to leave before it is this one's turn; 0 begins its turn."""
        place = max(0, list(self._began).index(newcomer) + 1 - self.at_once)
        if place == 0:
            self._began[newcomer] = time.monotonic()
        return place

    def wait_s(self, place: int) -> float:
        """Return about how many seconds it takes until a newcomer at a place gets the state."""
        return self._last_s * math.ceil(place / self.at_once)

    def leave(self, newcomer: PeerID) -> None:
        """Let the others move up."""
        if (began := self._began.pop(newcomer)) is not None:
            self._last_s = time.monotonic() - began
            put(self._turns, newcomer, [*self._turns.get(newcomer, ()), began][-MAX_TURNS:], MAX_REMEMBERED)
        self._length.value = len(self._began)


def waiting_message(place: int, wait_s: float) -> averaging_pb2.DownloadData:
    """Return what tells a newcomer how many are before it, and for about how many seconds."""
    return averaging_pb2.DownloadData(metadata=wire.dumps({"place": place, "wait_s": wait_s}))


async def download(
    averager,
    expected: ExpectedState,
    timeout_s: float,
    without: Collection[str] = (),
    tell: Callable[[Taking], None] = lambda _: None,
) -> tuple[str, dict, list[Tensor]] | None:
    """Return donor, metadata and tensors of the newest state that a peer may give and that can be right; None if none.

    Runs in the averager's process. One donor of each user is asked, of those that are not in `without`. A donor that is
    silent for `timeout_s` seconds is given up, one that is slower than SLOWEST_BYTES_PER_S, and one that lets this peer
    wait for more than MAX_WAIT_S. `tell` is told every TELL_EVERY_S how it stands.
    """
    users, asked = set(without), 0
    async for peer in _admitted(averager, (await _candidates(averager, expected))[:MAX_OFFERS]):
        name = str(peer)
        if (user := averager.trust.user_of(name)) in users:
            continue
        if asked == MAX_DONORS:
            return None
        users.add(user)
        asked += 1
        averager.gave_no_state |= dict.fromkeys((user, name), time.monotonic())  # until it has given one
        try:
            metadata, tensors = await _receive(averager, peer, expected, timeout_s, tell)
        except Exception as error:
            averager.tell(peer, f"its state did not arrive: {in_one_line(error)}")
            continue
        if (problem := expected.problem(metadata, tensors)) is not None:
            averager.tell(peer, f"its state is refused: {problem}")
            continue
        for who in user, name:
            averager.gave_no_state.pop(who, None)
        logger.info("took over the state of %s at epoch %d", peer, metadata["epoch"])
        return name, metadata, tensors
    return None


def offers_key(prefix: str) -> str:
    """Return the key of the hash table under which the averagers of a run say that they have a state to give."""
    return f"{prefix}.all_averagers"


async def _candidates(averager, expected: ExpectedState) -> list[PeerID]:
    """Return the peers that offer a state, the latest epoch first, and last of all those that gave none lately.

    Epochs that are not believed are ignored.
    """
    user_of, long_ago = averager.trust.user_of, time.monotonic() - ASKED_LAST_S
    failed = averager.gave_no_state = {name: at for name, at in averager.gave_no_state.items() if at > long_ago}
    epochs = {
        peer: (-failed.get(user_of(str(peer)), 0.0), -failed.get(str(peer), 0.0), offer.value, random.random())
        for peer, offer in (await records_under(averager.dht, offers_key(averager.prefix))).items()
        if isinstance(offer.value, int | float) and 0 <= offer.value <= expected.max_epoch
    }
    epochs.pop(averager.peer_id, None)
    return sorted(epochs, key=epochs.get, reverse=True)


async def _admitted(averager, candidates: list[PeerID]) -> AsyncIterator[PeerID]:
    """Iterate over the candidates that may give their state. Some at once are looked up, as each may take seconds."""
    for first in range(0, len(candidates), LOOK_UP_AT_ONCE):
        some = candidates[first : first + LOOK_UP_AT_ONCE]
        problems = await asyncio.gather(*(averager.trust.refusal(str(peer)) for peer in some))
        for peer, problem in zip(some, problems, strict=True):
            if problem is None and averager.trust.may_reduce(str(peer)):
                yield peer
            else:
                averager.tell(peer, f"may not give its state: {problem or 'only peers that may reduce give states'}")


async def _receive(
    averager, peer: PeerID, expected: ExpectedState, timeout_s: float, tell: Callable[[Taking], None]
) -> tuple[Any, list[Tensor]]:
    """Return the metadata and tensors that a peer sends. Raises ValueError if they are too long or incomplete."""
    stub = averager.get_stub(averager._p2p, peer, namespace=averager.prefix)
    stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), timeout_s)
    metadata, parts, tensors, loop = None, [], [], asyncio.get_running_loop()
    received, left = 0, MAX_OVERHEAD * expected.size_bytes + MESSAGE_BYTES * len(expected.tensors) + 2**20
    limit_s, now = timeout_s + expected.size_bytes / SLOWEST_BYTES_PER_S, loop.time()
    waited, told_at = 0.0, -math.inf
    async with asyncio.timeout(limit_s) as limit:
        async for message in aiter_with_timeout(stream, timeout_s):
            before, now = now, loop.time()
            left -= max(message.ByteSize(), MESSAGE_BYTES)
            if left < 0:
                raise ValueError(f"it is larger than the {expected.size_bytes:,} bytes of the run's tensors")
            content = wire.loads(message.metadata) if message.metadata else None
            received += message.ByteSize()
            averager.upload.receive(message.ByteSize())
            share = min(1.0, received / max(1, expected.size_bytes))
            news = _told_to_wait(content, str(peer)) or Taking(str(peer), share=share)
            if now >= told_at + TELL_EVERY_S:
                told_at = now
                tell(news)
            if news.place is not None:
                waited += now - before
                if waited > MAX_WAIT_S:
                    raise TimeoutError(f"it let this peer wait for more than {MAX_WAIT_S} s")
                limit.reschedule(limit.when() + now - before)
                continue
            metadata = metadata if content is None else content
            part = message.tensor_part
            if part.dtype:  # it marks the beginning of a tensor
                if parts:
                    tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
                    parts = []
                if problem := expected.misfit(len(tensors), f"torch.{part.dtype}", tuple(part.size)):
                    raise ValueError(problem)  # decoded, 4 bits that are said to be float64 have 15 times the length
            parts.append(part)
            if len(tensors) == len(expected.tensors) - 1 and len(parts) == parts[0].chunks:
                break  # everything is here, and the donor waits for us to close the stream
    await stream.aclose()
    if parts:
        tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
    if not received:
        raise LookupError(f"it gives none now: to whoever had it {MAX_TURNS} times in an hour, or where many wait")
    if metadata is None:
        raise ValueError("it sent no metadata")
    return metadata, tensors


def _told_to_wait(content: Any, donor: str) -> Taking | None:
    """Return what a donor's `waiting_message` says, or None if this is none."""
    match content:
        case {"place": int() as place, "wait_s": float() as wait_s} if 0 <= place <= MAX_PLACE:
            return Taking(donor, place, wait_s if 0 <= wait_s <= MAX_WAIT_S else 0.0)
    return None
