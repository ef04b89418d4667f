"""Audits: another peer reduces a few parts a second time, so that a reducer that lies is reported.

Whatever the rule, a reducer could answer anything about its parts. In some rounds a peer therefore chooses, secretly
and before the round, one part of another reducer. After the round it asks all senders for the part they sent, reduces
it itself, and compares. The reducer cannot know which part that will be.
"""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from hivemind.compression import CompressionBase, CompressionInfo, deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from torch import Tensor

from dalle_lib.aggregation import part_problem, weight_problem
from dalle_lib.swarm.averaging.all_reduce import Runner, Tell
from dalle_lib.swarm.averaging.reducing import combine
from dalle_lib.swarm.averaging.trust import Trust

logger = logging.getLogger(__name__)

TOLERANCE = 0.1
"""Largest difference that is no lie, as a share of the norms of our own part and of the average together. It is a few
times what 8 bits lose on the way to a reducer and back."""
PATIENCE_S = 10.0
"""Seconds in which all senders must have answered, or the part is not checked."""
MAX_ASKED = 2
"""Questions of one peer about a round that are answered: a few bytes draw a whole part, which goes before own parts
where a volunteer limits the upload. An auditor asks once."""


def _reducers(runner: Runner) -> list[tuple[int, PeerID]]:
    """Return the index and id of each peer of a group that reduces a part."""
    parts = runner.tensor_part_container.num_parts_by_peer
    return [(index, peer) for index, peer in enumerate(runner.ordered_peer_ids) if parts[index]]


@dataclass(frozen=True)
class Evidence:
    """What a peer sent in a round, kept until the next one, and nothing else of that round."""

    group_id: bytes
    peers: tuple[PeerID, ...]
    own: int
    """Index of this peer among them."""
    weight: float
    sent: list[list[runtime_pb2.Tensor]]
    """Messages sent to each peer, in order; they are added while the round goes on."""
    left_out_from: Mapping[int, int]
    """The first part that did not count, by the index of a reducer that went on without it; added as `sent` is."""
    own_parts: list[Tensor]
    """What it reduced itself, which it sent to nobody."""
    codec: CompressionBase
    """How its own parts are compressed, as exactly as answers are: they count as they are."""
    infos: list[CompressionInfo]
    """Those of its own parts."""
    asked: Counter[PeerID] = field(default_factory=Counter)
    """How often each peer has asked for a part."""

    @classmethod
    def of(cls, runner: Runner) -> "Evidence":
        """Return what a round will send, which `runner` begins."""
        parts, own = runner.tensor_part_container, runner.ordered_peer_ids.index(runner.peer_id)
        return cls(
            group_id=runner.group_id,
            peers=tuple(runner.ordered_peer_ids),
            own=own,
            weight=runner.weight,
            sent=parts.sent,
            left_out_from=parts.left_out_from,
            own_parts=[part.clone() for part in runner.parts_for_local_averaging],
            codec=getattr(parts.compression, "answers", parts.compression),
            infos=parts.infos[own],
        )

    def is_left_out(self, reducer: int, part: int) -> bool:
        """Return whether one reducer has gone on without a part, as it has said."""
        return part >= self.left_out_from.get(reducer, math.inf)

    def message(self, reducer: int, part: int) -> runtime_pb2.Tensor:
        """Return the part that one reducer got. Raises IndexError if there is none."""
        if reducer == self.own:
            return self.codec.compress(self.own_parts[part], self.infos[part])
        return self.sent[reducer][part]


@dataclass(frozen=True)
class Recheck:
    """One part of another reducer, which this peer reduces again after the round."""

    runner: Runner
    reducer: int
    """Index of the reducer in the group."""
    part: int
    """Index of the part among the reducer's."""
    average: asyncio.Future[Tensor]
    """The reducer's answer."""


class Auditor:
    """What an averager keeps of its last round, so that others can check it, and its own check of another reducer."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.evidence: Evidence | None = None

    def begin(self, runner: Runner, reachable: Collection[PeerID]) -> Recheck | None:
        """Start to keep what this round sends, and return what to check after it, if anything. Call it in the loop.

        `reachable` are the peers of the group that others can connect to, by their own introductions; each of them may
        check any other, whether it reduces or not.
        """
        self.evidence = None
        if not self.trust.audits:
            return None
        self.evidence = Evidence.of(runner)
        others = [index for index, peer in _reducers(runner) if peer != runner.peer_id]
        if self.obstacle(runner, reachable) is not None or not others or runner.peer_id not in reachable:
            return None
        if random.random() >= self.trust.audits / len(reachable):
            return None
        reducer = random.choice(others)
        part = random.randrange(runner.tensor_part_container.num_parts_by_peer[reducer])
        return Recheck(runner, reducer, part, runner.tensor_part_container.watch(reducer, part))

    def obstacle(self, runner: Runner, reachable: Collection[PeerID]) -> str | None:
        """Return why nobody can check any reducer of a round; None if somebody can, or the run has no audits."""
        if not self.trust.audits:
            return None
        if len(runner.sender_peer_ids) < 3:
            return "no third peer is there to ask"
        if all(peer == reducer for peer in reachable for _, reducer in _reducers(runner)):
            return "no peer besides the only reducer can be reached"
        return None

    def answer(self, request: averaging_pb2.AveragingData, asker: PeerID) -> averaging_pb2.AveragingData:
        """Return the part that we sent to one reducer, for a peer of the same round.

        The request names them as (reducer, part) in the size of its tensor. Where the reducer went on without that
        part, the answer is CANCELLED. Others, and peers that ask for a part that does not exist or ask too often, get a
        message with the code of their mistake.
        """
        evidence = self.evidence
        if evidence is None or request.group_id != evidence.group_id or asker not in evidence.peers:
            return averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
        evidence.asked[asker] += 1
        try:
            if evidence.asked[asker] > MAX_ASKED:
                raise IndexError("an auditor checks one part of a round")
            if evidence.is_left_out(*request.tensor_part.size):
                return averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
            message = evidence.message(*request.tensor_part.size)
        except (IndexError, TypeError):
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        code, weight = averaging_pb2.PART_FOR_AVERAGING, evidence.weight
        return averaging_pb2.AveragingData(code=code, tensor_part=message, weight=weight)

    async def finish(self, check: Recheck, tell: Tell) -> None:
        """Reduce the chosen part again after the round, and report its reducer if the averages differ."""
        if not check.average.done() or check.average.cancelled():
            return
        runner, claimed_average = check.runner, check.average.result()
        reducer = runner.ordered_peer_ids[check.reducer]
        try:
            received = await asyncio.wait_for(self._collect(check, tell), PATIENCE_S)
            expected = await self._reduce_again(runner, received, claimed_average.shape)
        except Exception as error:
            logger.info("part %d of %s could not be checked: %r", check.part, reducer, error)
            return
        # The longest part is no measure: a second liar would only have to send a huge one.
        allowed = TOLERANCE * float(received[runner.peer_id][0].norm() + expected.norm())
        if (difference := float((claimed_average - expected).norm())) > allowed:
            tell(
                reducer,
                f"its average of part {check.part} is not what {runner.peer_id} computes from the same peers' tensors: "
                f"they differ by {difference:.3g}, and {allowed:.3g} is allowed. One of the two lies, or a third peer "
                f"told them different things",
            )

    async def _reduce_again(
        self, runner: Runner, received: dict[PeerID, tuple[Tensor, float]], shape: torch.Size
    ) -> Tensor:
        """Return the average of the parts that a reducer would not have refused."""
        usable = {
            sender: (tensor, weight)
            for sender, (tensor, weight) in received.items()
            if not (part_problem(tensor, shape) or weight_problem(weight))
        }
        if not usable:
            raise LookupError("no part of it could be averaged")
        trust = runner.tensor_part_reducer.trust  # with users as reducers know them, not by this peer's roster
        users = [trust.user_of(str(sender)) for sender in usable]
        tensors, claimed = zip(*usable.values(), strict=True)
        counts = runner.tensor_part_reducer.counts[[runner.sender_peer_ids.index(sender) for sender in usable]]
        average, _weights = await asyncio.get_running_loop().run_in_executor(
            None, combine, tensors, torch.tensor(claimed), users, trust, counts, runner.tensor_part_reducer.vouched
        )
        return average

    async def _collect(self, check: Recheck, tell: Tell) -> dict[PeerID, tuple[Tensor, float]]:
        """Return the part that each sender says it sent in time, with its weight; our own is as the reducer got it.

        A peer that does not answer is reported, or a liar could keep its averages from being checked. Raises the error
        of the first such peer.
        """
        runner = check.runner
        own = deserialize_torch_tensor(runner.tensor_part_container.sent[check.reducer][check.part])
        received = {runner.peer_id: (own, runner.weight)}
        question = averaging_pb2.AveragingData(
            group_id=runner.group_id, tensor_part=runtime_pb2.Tensor(size=[check.reducer, check.part])
        )
        others = [peer for peer in runner.sender_peer_ids if peer != runner.peer_id]
        stubs = map(runner._get_peer_stub, others)
        answers = await asyncio.gather(*(stub.rpc_part_sent(question) for stub in stubs), return_exceptions=True)
        for peer, answer in zip(others, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                runner.upload.receive(answer.ByteSize())
                if answer.code == averaging_pb2.CANCELLED:  # it came too late to count, as it says itself
                    continue
                if answer.code != averaging_pb2.PART_FOR_AVERAGING:
                    raise LookupError(f"it answered {averaging_pb2.MessageCode.Name(answer.code)}")
                if tuple(answer.tensor_part.size) == own.shape:  # else the reducer has refused it
                    received[peer] = deserialize_torch_tensor(answer.tensor_part), answer.weight
            except Exception as error:
                whose = runner.ordered_peer_ids[check.reducer]
                tell(peer, f"it does not say what it sent to {whose}, whose average cannot be checked: {error!r}")
                raise
        return received
