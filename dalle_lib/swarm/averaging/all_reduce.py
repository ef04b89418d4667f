"""A round within a group: each peer sends every reducer its parts, and checks the averages that come back.

hivemind 1.1.12 believes any answer of a reducer, and does not say who failed, or whose tensors an average holds.
"""

import asyncio
import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial

import torch
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from torch import Tensor

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.averaging.answers import LOOK_EVERY_S, made_ahead, within
from dalle_lib.swarm.averaging.in_step import InStep
from dalle_lib.swarm.averaging.listening import Listening
from dalle_lib.swarm.averaging.own_parts import Parts
from dalle_lib.swarm.averaging.paces import Paces
from dalle_lib.swarm.averaging.packed_weights import pack_weights, unpack_weights
from dalle_lib.swarm.averaging.patience import Patience, are_cheap
from dalle_lib.swarm.averaging.reducing import Reducer
from dalle_lib.swarm.averaging.rounds import Counted
from dalle_lib.swarm.averaging.same_answers import SameAnswers
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload
from dalle_lib.swarm.averaging.waiting import Waiting

Peers = Collection[PeerID]
Tell = Callable[[PeerID, str], None]
"""Takes note of a peer, and of what was wrong with it."""
TOO_LATE = averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
"""The answer to a sender without the rest of whose tensors a reducer has gone on."""


class Runner(SameAnswers):
    """hivemind's all-reduce with `Reducer` and `Parts`; it tells which peer failed, and why."""

    reducer_type: type[Reducer] = Reducer

    def __init__(
        self,
        *,
        trust: Trust,
        upload: Upload,
        tell: Tell,
        counts: Sequence[bool],
        patience: Patience | None = None,
        **kwargs,
    ) -> None:
        """Take whether each peer of the group counts, what is known of the rounds before, and hivemind's options.

        With `sender_timeout`, `patience` says for how long others are waited for, and it is the most for senders.
        """
        super().__init__(**kwargs)
        self.tell, self.upload, self.patience = tell, upload, patience or Patience()
        place = self.ordered_peer_ids.index(self.peer_id)
        self.tensor_part_container = Parts.instead_of(self.tensor_part_container, trust.audits > 0, place)
        self.tensor_part_container.longest *= trust.longest_way(self.weight)
        self.answers, self._messages = getattr(self.tensor_part_container.compression, "answers", None), {}
        self.parts_for_local_averaging = self.tensor_part_container.get_raw_input_parts(place)
        # Otherwise hivemind's own reducer would warn, when it is dropped here, that nothing came.
        self.tensor_part_reducer.num_senders = 0
        senders = [str(peer) for peer in self.sender_peer_ids]
        own = self.sender_peer_ids.index(self.peer_id) if self.peer_id in self.sender_peer_ids else None
        shapes = tuple(part.shape for part in self.parts_for_local_averaging)
        self.tensor_part_reducer = self.reducer_type(shapes, senders, own, trust, counts)
        self._weights_heard: list[Tensor] = []
        self._most_counted = torch.full((len(senders),), max(1.0, trust.max_weight))
        if own is not None:
            self._most_counted[own] = max(1.0, self.weight)  # its record repeats it, and would be refused, or flagged
        self._not_understood: set[PeerID] = set()
        self.failed: set[PeerID] = set()
        """Other peers that were waited for in vain, as senders or reducers."""
        self.refused: set[PeerID] = set()
        """Other peers whose tensors were refused when they came, which cost no time."""
        self.slow: set[PeerID] = set()
        """Senders that had sent some of their tensors when this peer went on without the rest."""
        self.late_to: set[PeerID] = set()
        """Reducers that have gone on without the rest of this peer's tensors, as they say."""
        self.unreduced: set[PeerID] = set()
        """Reducers that have not given back all averages."""
        others = set(self.ordered_peer_ids) - {self.peer_id}
        parts_of = zip(self.ordered_peer_ids, self.tensor_part_container.num_parts_by_peer, strict=True)
        self._other_reducers = others & {peer for peer, parts in parts_of if parts}
        other_senders = others & set(self.sender_peer_ids)
        self.waiting = Waiting(self.patience, self.sender_timeout, other_senders, self._other_reducers)
        self._in_vain: dict[PeerID, str] = {}
        """What was missing of each peer that was waited for in vain."""
        part_bytes = self.tensor_part_container.part_size_bytes
        self._owed: Counter[int] = Counter()
        """How many answers to each sender's parts have not been handed to p2pd yet."""
        self._in_step = defaultdict(partial(InStep, len(senders), part_bytes))
        self._bytes_answered = 0
        self.paces = Paces(trust.answer_size)
        """How fast the others were."""
        self.bytes_received = 0
        """Bytes of tensors that have come: the senders' parts, if this peer reduces, and averages from reducers."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of tensors that this peer has sent: its parts to reducers, and averages as a reducer."""
        return self.tensor_part_container.bytes_sent + self._bytes_answered

    @property
    def is_whole(self) -> bool:
        """Whether all reducers gave back all of their parts."""
        return self.tensor_part_container.failed_size == 0

    @property
    def is_late(self) -> bool:
        """Whether most of the other reducers, and two at least, say that this peer's tensors came too late: a few may
        lie, to be blamed for nothing."""
        return 2 * len(self.late_to) > max(len(self._other_reducers), 2)

    @property
    def cheap(self) -> set[PeerID]:
        """Slow senders that have failed in nothing else, where waiting for them soon costs little."""
        late = self.failed - self.unreduced
        return late & self.slow if are_cheap(len(late), self.group_size) else set()

    def counted(self) -> Counted:
        """Return each sender's weight in the average, the mean over the parts whose reducers told it; else NaN."""
        rows = [*self.tensor_part_reducer.weights, *self._weights_heard]
        means = torch.stack(rows).mean(0) if rows else torch.full((len(self.sender_peer_ids),), math.nan)
        return {str(peer): float(weight) for peer, weight in zip(self.sender_peer_ids, means, strict=True)}

    async def run(self) -> AsyncIterator[Tensor]:
        """Average, and iterate over each tensor's average if there are `answers`, else the difference to add to it."""
        has_ended = False
        try:
            async for update in super().run():
                yield update
            has_ended = True
        finally:
            self._blame(has_ended)
        for sender in self.tensor_part_reducer.far:
            self.tell(self.sender_peer_ids[sender], "its tensors did not count: they are far longer than the others'")
        for sender, weight in self.tensor_part_reducer.beyond.items():
            limit = self.tensor_part_reducer.trust.max_weight
            self.tell(self.sender_peer_ids[sender], f"it claims a weight of {weight:.3g}: it counts as {limit:.3g}")

    def _blame(self, has_ended: bool) -> None:
        """Tell who was waited for in vain: others, or this peer itself, which saw them wait for it.

        Who was in time is known of a round that `has_ended` alone: one may be called off at any moment. A peer to which
        most have said in one of the last rounds that it is slow believes a few as well: they wait less and less for it.
        """
        believes = self.upload.steps_back
        if has_ended or self.is_late:
            self.upload.note_round(self.is_late)
        if self.is_late or (believes and self.late_to):
            self.tell(self.peer_id, "the others went on without the rest of its tensors, which came too slowly")
        if self.is_late:
            self.failed.clear()
            return
        if believes:
            self.late_to.clear()
        self.failed |= self.late_to
        self.patience.note(self.ordered_peer_ids if has_ended else self.failed, self.failed, self.waiting.waited_s)
        for peer in self.late_to:
            self.tell(peer, "it did not reduce its parts: it says that ours came too slowly, and most others do not")
        for peer, what in self._in_vain.items():
            self.tell(peer, what)

    def _get_peer_stub(self, peer: PeerID) -> Listening:
        shapes = self.tensor_part_container.shapes_for(self.ordered_peer_ids.index(peer))
        return Listening(super()._get_peer_stub(peer), partial(self._hear, peer), shapes)

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        in_step, number = self._in_step[self.ordered_peer_ids[peer_index]], 0
        async for part in super()._generate_input_for_peer(peer_index):
            await in_step.turn(number)
            await self.upload.send(part.ByteSize())
            yield part
            number += 1

    def _hear(self, reducer: PeerID, answer: averaging_pb2.AveragingData) -> None:
        """Note an answer's bytes and its weights, as its reducer tells them; a reducer may tell none."""
        if answer.code in (averaging_pb2.AVERAGED_PART, averaging_pb2.CANCELLED):
            self.waiting.hear(reducer)
        if answer.code == averaging_pb2.CANCELLED:
            self.late_to.add(reducer)
            place = self.ordered_peer_ids.index(reducer)
            self.tensor_part_container.left_out_from[place] = self._in_step[reducer].answers
        self._in_step[reducer].answered()
        self.bytes_received += answer.tensor_part.ByteSize()
        self.upload.receive(answer.ByteSize())
        self.paces.answered(reducer, answer.tensor_part.ByteSize())
        if not answer.peer_id or reducer in self._not_understood:
            return
        try:
            weights = unpack_weights(answer.peer_id, len(self.sender_peer_ids))
            if bool((weights > 1.001 * self._most_counted).any()):  # rounding
                raise ValueError(f"at most {self._most_counted.tolist()} are possible, but got {weights.tolist()}")
            self._weights_heard.append(weights)
        except ValueError as error:
            self._not_understood.add(reducer)
            self.tell(reducer, f"its report of the senders' weights cannot be used: {error}")

    def should_delay_results(self, peer_id: PeerID) -> bool:
        # hivemind lets peers that do not reduce read their first average when they have sent their last part. A
        # reducer's link would be full in one direction, then in the other, and the round take twice the time.
        return False

    async def _accumulate_parts_streaming(self, stream, sender_index: int):
        # Peers of earlier versions that do not reduce read nothing before they have sent all.
        async for part, weights in made_ahead(self._answers(stream, sender_index)):
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=part, peer_id=weights)
            self._owed[sender_index] -= 1
        sender = self.sender_peer_ids[sender_index]
        if sender in self.banned_senders and sender not in self.refused:
            yield TOO_LATE

    async def _answers(self, stream, sender_index: int):
        # hivemind waits for each part anew: a sender that takes its time for each makes every round fail.
        sender = self.sender_peer_ids[sender_index]
        if self.sender_timeout is not None:
            limit_s = partial(self.waiting.limit_s, sender)
            stream = within(stream, limit_s, partial(self._owes, sender_index), self.waiting.seconds)
        try:
            rows = iter(self.tensor_part_reducer.weights)
            async for message in super()._accumulate_parts_streaming(
                self._counting(stream, sender_index), sender_index
            ):
                self._bytes_answered += message.tensor_part.ByteSize()
                yield message.tensor_part, pack_weights(next(rows))
        except TimeoutError as error:
            self.slow.add(sender)
            self._in_vain.setdefault(sender, f"its tensors came too slowly: {in_one_line(error)}")
        except Exception as error:
            self.refused.add(sender)
            self.failed.discard(sender)  # hivemind has banned it first
            self.tell(sender, f"its tensors were refused: {in_one_line(error)}")
            raise

    async def _handle_missing_senders(self) -> None:
        # hivemind waits equally long for all of them.
        while self.sender_timeout is not None and not self.tensor_part_reducer.finished.is_set():
            if not (missing := set(self.sender_peer_ids) - self.active_senders - self.banned_senders):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.all_senders_started.wait(), LOOK_EVERY_S)
            waited_s = self.waiting.seconds
            missing -= self.active_senders
            for peer in [peer for peer in missing if self.waiting.limit_s(peer, waited_s) <= waited_s]:
                await self._ban_sender(peer)

    def _owes(self, sender_index: int) -> bool:
        """Return whether a sender, which keeps in step with answers, may wait for one of this peer's."""
        return self._owed[sender_index] > 0

    async def _counting(self, parts: AsyncIterator, sender_index: int) -> AsyncIterator:
        """Iterate over a sender's parts, and count their bytes and the time that they take."""
        shapes = iter(self.tensor_part_reducer.part_shapes)
        sender = self.sender_peer_ids[sender_index]
        async for part in self.paces.timed(sender, parts, partial(self._owes, sender_index)):
            self.waiting.hear(sender)
            self._owed[sender_index] += 1
            size, expected = tuple(part.tensor_part.size), tuple(next(shapes, ()))
            if expected and size != expected:  # decoded, 2 MiB may be 50
                raise AllreduceException(f"its shape is {size}, but {expected} was expected")
            self.bytes_received += part.tensor_part.ByteSize()
            self.upload.receive(part.ByteSize())
            yield part

    async def _ban_sender(self, peer_id: PeerID) -> None:
        # hivemind calls this for each sender that has not sent all, also after the round.
        if peer_id not in self.banned_senders and not self.tensor_part_reducer.finished.is_set():
            self.failed.add(peer_id)
            if peer_id not in self.active_senders:
                waited_s = self.waiting.waited_s[peer_id]
                self._in_vain.setdefault(peer_id, f"it sent none of its tensors in {waited_s:.3g} s")
        await super()._ban_sender(peer_id)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        try:
            async with self.waiting.for_reducer(peer_id):
                await super()._communicate_with_peer(peer_id)
        except Exception as error:
            self.unreduced.add(peer_id)
            what = f"it did not reduce its parts: {in_one_line(error)}"
            if peer_id == self.peer_id:  # hivemind registers the failure of other reducers only
                self.tensor_part_container.register_failed_reducer(self.ordered_peer_ids.index(peer_id))
                self.tell(peer_id, what)
            elif isinstance(error, ValueError):
                self.refused.add(peer_id)
                self.tell(peer_id, what)
            elif peer_id not in self.late_to:
                self.failed.add(peer_id)
                self._in_vain.setdefault(peer_id, what)
            raise
