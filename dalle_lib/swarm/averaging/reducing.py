"""Averaging within a group: each peer reduces some parts of everybody's tensors, and checks what the others reduce.

hivemind 1.1.12 adds up whatever it is sent, with whatever weight: one NaN, one weight below zero or all weights zero
spoil the average of all, a part of one element spreads over a whole one, and a reducer may answer anything.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import BannedException, TensorPartContainer
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID, StubBase
from hivemind.proto import averaging_pb2, runtime_pb2
from torch import Tensor

from dalle_lib.aggregation import RULES, capped, capped_by_user, part_problem, weight_problem, without_far
from dalle_lib.swarm.averaging.rounds import Counted
from dalle_lib.swarm.averaging.trust import Trust

Tell = Callable[[PeerID, str], None]
"""Takes note of a peer, and of what was wrong with it."""
MOST_WEIGHT = 1.0
"""Of the median peer's weight, with rules that outvote liars: of four times as much, two liars of seven would have the
majority. What faster peers compute beyond it does not count."""
RESULT_BOUND = 3.0
"""An average may be so many times as long as what we put in; longer ones are refused."""


class Reducer:
    """Collects parts from their senders, and gives each sender the parts' average.

    It stands in the place of hivemind's TensorPartReducer. A part is done when all senders that still take part have
    sent it. Parts that cannot be used, and their sender's later ones, are refused; the others go on without them.
    """

    def __init__(
        self, part_shapes: Sequence[torch.Size], senders: Sequence[str], own: int | None, trust: Trust
    ) -> None:
        self.part_shapes, self.num_parts, self.trust = part_shapes, len(part_shapes), trust
        self.users = [trust.user_of(sender) for sender in senders]
        self.senders, self.own = senders, own
        self.weights = torch.zeros(self.num_parts, len(senders))
        self.far: set[int] = set()
        """Senders of parts that did not count, being far longer than the others'."""
        self.finished = asyncio.Event()
        self._failed: set[int] = set()
        self._parts: list[dict[int, Tensor]] = [{} for _ in part_shapes]
        self._results = [asyncio.get_running_loop().create_future() for _ in part_shapes]
        self._begun: set[int] = set()
        if not part_shapes:
            self.finished.set()

    async def accumulate_part(self, sender_index: int, part_index: int, tensor_part: Tensor, weight: float) -> Tensor:
        """Return the average of a part, when it is there. Raises AllreduceException if the part cannot be used."""
        if part_index >= self.num_parts:
            raise AllreduceException(f"it sent part {part_index}, but there are {self.num_parts}")
        if sender_index in self._failed or self.finished.is_set():
            raise BannedException(f"{self.senders[sender_index]} is no longer part of this round")
        problem = part_problem(tensor_part, self.part_shapes[part_index]) or weight_problem(weight)
        if problem is not None and sender_index != self.own:
            raise AllreduceException(problem)
        self.weights[part_index, sender_index] = 0.0 if problem else weight
        self._parts[part_index][sender_index] = torch.zeros_like(tensor_part) if problem else tensor_part
        self._combine_if_complete(part_index)
        return await asyncio.shield(self._results[part_index])

    def on_sender_failed(self, sender_index: int) -> None:
        """Go on without a sender; what it has sent still counts."""
        self._failed.add(sender_index)
        for part_index in range(self.num_parts):
            self._combine_if_complete(part_index)

    def finalize(self) -> None:
        """Give up what is not done yet."""
        self.finished.set()
        for result in self._results:
            result.cancel()

    def _combine_if_complete(self, part_index: int) -> None:
        expected = set(range(len(self.senders))) - self._failed
        parts = self._parts[part_index]
        if part_index not in self._begun and parts and parts.keys() >= expected:
            self._begun.add(part_index)
            asyncio.create_task(self._combine(part_index))  # noqa: RUF006  (kept by KeepsTasks)

    async def _combine(self, part_index: int) -> None:
        parts = self._parts[part_index]
        senders = sorted(parts)
        claimed, users = self.weights[part_index, senders], [self.users[i] for i in senders]
        result, loop = self._results[part_index], asyncio.get_running_loop()
        try:
            average, weights = await loop.run_in_executor(
                None, combine, [parts[i] for i in senders], claimed, users, self.trust
            )
            self.weights[part_index, senders] = weights
            self.far |= {sender for sender, a, b in zip(senders, claimed, weights, strict=True) if a > 0 == b}
        except Exception as error:
            average = error
        parts.clear()
        if not result.done():
            result.set_exception(average) if isinstance(average, Exception) else result.set_result(average)
        if all(result.done() for result in self._results):
            self.finished.set()


def fair_weights(weights: Tensor, users: Sequence[str], trust: Trust) -> Tensor:
    """Return what the senders of a part count for, by what they claim and what the run allows."""
    weights = weights.clamp(max=trust.max_weight)
    if not weights.any():
        weights = torch.ones_like(weights)  # all are behind, so none is better than another
    if trust.rule != "mean":
        weights = capped(weights, MOST_WEIGHT)
    return capped_by_user(weights, users, trust.max_share_per_user)


def combine(parts: Sequence[Tensor], claimed: Tensor, users: Sequence[str], trust: Trust) -> tuple[Tensor, Tensor]:
    """Return what the run's rule makes of parts of one shape, and what each part counted for."""
    stacked = torch.stack([part.float().flatten() for part in parts])
    weights = fair_weights(claimed, users, trust)
    if trust.rule != "mean":
        weights = without_far(stacked, weights)
    return RULES[trust.rule](stacked, weights).view(parts[0].shape), weights


class Parts(TensorPartContainer):
    """hivemind's container of parts, which refuses results that no honest reducer gives, and keeps what it has sent."""

    @classmethod
    def take_over(cls, container: TensorPartContainer, keeps_sent: bool) -> None:
        """Make the container that hivemind has made one of these."""
        container.__class__, container.keeps_sent = cls, keeps_sent
        container.sent = [[] for _ in range(container.group_size)]
        container.infos = [[info for _part, info in parts] for parts in container._input_parts_by_peer]
        values = max(1, container.total_size)
        container.typical = math.sqrt(sum(float(t.norm()) ** 2 for t in container.local_tensors) / values)

    infos: list[list[CompressionInfo]]
    """How each part for each reducer is to be compressed."""
    bytes_sent = 0
    sent: list[list[runtime_pb2.Tensor]]
    """The messages that went to each reducer, for those who check it."""
    typical: float
    """Root mean square of the values that this peer puts in."""
    watched: tuple[int, int] | None = None
    """A reducer, and a part of its, whose average is to be kept as `seen`."""
    seen: Tensor | None = None

    async def iterate_input_parts_for(self, peer_index: int) -> AsyncIterator[runtime_pb2.Tensor]:
        """Iterate over the messages for a reducer, and keep them."""
        async for message in super().iterate_input_parts_for(peer_index):
            self.bytes_sent += message.ByteSize()
            if self.keeps_sent:
                self.sent[peer_index].append(message)
            yield message

    def compress_own(self, values: Tensor, peer_index: int, part_index: int) -> runtime_pb2.Tensor:
        """Return the message that a part would be, had it been sent."""
        return self.compression.compress(values, self.infos[peer_index][part_index])

    def register_processed_part(self, peer_index: int, part_index: int, part: Tensor) -> None:
        """Take over a result. Raises AllreduceException for one that cannot be right."""
        own = self._input_parts_by_peer[peer_index][part_index][0]
        if (problem := part_problem(part, own.shape)) is not None:
            raise AllreduceException(problem)
        longest = RESULT_BOUND * max(float(own.norm()), self.typical * math.sqrt(own.numel()))
        average = own + part
        if (length := float(average.norm())) > longest > 0:
            raise AllreduceException(f"its average has norm {length:.3g}, and at most {longest:.3g} is believed")
        if (peer_index, part_index) == self.watched:
            self.seen = average
        super().register_processed_part(peer_index, part_index, part)


class Runner(AllReduceRunner):
    """hivemind's all-reduce with the reducer and the container above; it tells who failed, and why."""

    def __init__(self, *, trust: Trust, tell: Tell, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tell = tell
        self.tensor_part_reducer.num_senders = 0  # or it would warn, when it is dropped here, that nothing came
        senders = [str(peer) for peer in self.sender_peer_ids]
        own = self.sender_peer_ids.index(self.peer_id) if self.peer_id in self.sender_peer_ids else None
        shapes = tuple(part.shape for part in self.parts_for_local_averaging)
        self.tensor_part_reducer = Reducer(shapes, senders, own, trust)
        Parts.take_over(self.tensor_part_container, keeps_sent=trust.audits > 0)
        self._heard: list[Tensor] = []
        self._bytes_answered = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes of tensors that this peer has sent, to reducers and as one."""
        return self.tensor_part_container.bytes_sent + self._bytes_answered

    @property
    def is_whole(self) -> bool:
        """Whether all reducers gave back all of their parts."""
        return self.tensor_part_container.failed_size == 0

    def counted(self) -> Counted:
        """Return whose tensors are in the average, by what all reducers say that each counted for; else NaN."""
        rows = [*self.tensor_part_reducer.weights, *self._heard]
        means = torch.stack(rows).mean(0) if rows else torch.full((len(self.sender_peer_ids),), math.nan)
        return {str(peer): float(weight) for peer, weight in zip(self.sender_peer_ids, means, strict=True)}

    async def run(self) -> AsyncIterator[Tensor]:
        """Average, and iterate over what to add to each tensor, as hivemind does."""
        async for update in super().run():
            yield update
        for sender in self.tensor_part_reducer.far:
            self.tell(self.sender_peer_ids[sender], "its tensors did not count: they are far longer than the others'")

    def _get_peer_stub(self, peer):
        expected = self.tensor_part_container.num_parts_by_peer[self.ordered_peer_ids.index(peer)]
        return _Listening(super()._get_peer_stub(peer), self._hear, expected)

    def _hear(self, weights: bytes) -> None:
        """Note what each sender counted for in a part, as its reducer says; peers of plain hivemind say nothing."""
        if len(weights) == 4 * len(self.sender_peer_ids):
            self._heard.append(torch.frombuffer(bytearray(weights), dtype=torch.float32))

    async def _accumulate_parts_streaming(self, stream, sender_index: int):
        try:
            rows = iter(self.tensor_part_reducer.weights)
            async for message in super()._accumulate_parts_streaming(stream, sender_index):
                self._bytes_answered += message.tensor_part.ByteSize()
                message.peer_id = next(rows).numpy().tobytes()  # hivemind's message has one field that nobody uses
                yield message
        except Exception as error:
            self.tell(self.sender_peer_ids[sender_index], f"its tensors were refused: {error or type(error).__name__}")
            raise

    async def _communicate_with_peer(self, peer_id) -> None:
        try:
            await super()._communicate_with_peer(peer_id)
        except Exception as error:
            if peer_id == self.peer_id:  # hivemind gives up the parts of other reducers only
                self.tensor_part_container.register_failed_reducer(self.ordered_peer_ids.index(peer_id))
            self.tell(peer_id, f"it did not reduce what it was to: {error or type(error).__name__}")
            raise


class _Listening:
    """A groupmate as the runner calls it, which hangs up after so many answers.

    What the answers tell besides their tensors is handed on.
    """

    def __init__(self, stub: StubBase, hear: Callable[[bytes], None], expected: int) -> None:
        self._stub, self._hear, self._expected = stub, hear, expected

    def __getattr__(self, name: str):
        return getattr(self._stub, name)

    async def rpc_aggregate_part(self, parts: AsyncIterator[averaging_pb2.AveragingData]):
        """Return the averages of parts, as hivemind's stub does."""
        return self._heard(await self._stub.rpc_aggregate_part(parts))

    async def _heard(self, answers: AsyncIterator[averaging_pb2.AveragingData]):
        count = 0
        async with contextlib.aclosing(answers):
            while count < self._expected and (answer := await anext(answers, None)) is not None:
                self._hear(answer.peer_id)
                yield answer
                count += 1
