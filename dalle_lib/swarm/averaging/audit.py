"""Reducing a few parts a second time, by another peer, so that a reducer that lies is seen.

Whatever the rule, a reducer could answer anything about its parts. So now and then a peer chooses, secretly and before
the round, one part of another reducer; after the round it asks all senders for what they sent, reduces it itself, and
compares. The reducer cannot know which part that will be.
"""

import asyncio
import logging
import random
from dataclasses import dataclass

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from torch import Tensor

from dalle_lib.aggregation import part_problem, weight_problem
from dalle_lib.swarm.averaging.reducing import Runner, Tell, combine
from dalle_lib.swarm.averaging.trust import Trust

logger = logging.getLogger(__name__)

TOLERANCE = 0.1
"""Of our own part and of the average together: what 8 bits may lose on their ways, with room to spare."""
PATIENCE_S = 10.0


@dataclass
class Evidence:
    """What a peer sent in a round, kept until the next one."""

    runner: Runner
    own_parts: list[Tensor]
    """What it reduced itself, which it sent to nobody."""


class Auditor:
    """What one averager knows of its last round, for others to check, and its own check."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.evidence: Evidence | None = None

    def begin(self, runner: Runner) -> None:
        """Keep what this round sends, and choose what to check, if anything."""
        self.evidence = None
        if not self.trust.audits:
            return
        self.evidence = Evidence(runner, [part.clone() for part in runner.parts_for_local_averaging])
        own = runner.ordered_peer_ids.index(runner.peer_id)
        counts = runner.tensor_part_container.num_parts_by_peer
        others = [index for index, parts in enumerate(counts) if parts and index != own]
        is_reducer = runner.modes[own] is AveragingMode.NODE
        auditors = sum(mode is AveragingMode.NODE for mode in runner.modes)
        if others and is_reducer and len(runner.sender_peer_ids) > 2 and random.random() < self.trust.audits / auditors:
            reducer = random.choice(others)
            runner.tensor_part_container.watched = reducer, random.randrange(counts[reducer])

    def answer(self, request: averaging_pb2.AveragingData, asker: PeerID) -> averaging_pb2.AveragingData:
        """Return what we sent to one reducer as one part, for a peer of the same round."""
        evidence = self.evidence
        if evidence is None or request.group_id != evidence.runner.group_id or asker not in evidence.runner:
            return averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
        try:
            message = self._sent(evidence, *request.tensor_part.size)
        except (IndexError, TypeError):
            return averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
        code, weight = averaging_pb2.PART_FOR_AVERAGING, evidence.runner.weight
        return averaging_pb2.AveragingData(code=code, tensor_part=message, weight=weight)

    def _sent(self, evidence: Evidence, reducer: int, part: int) -> runtime_pb2.Tensor:
        runner, parts = evidence.runner, evidence.runner.tensor_part_container
        if runner.ordered_peer_ids[reducer] == runner.peer_id:
            return parts.compress_own(evidence.own_parts[part], reducer, part)
        return parts.sent[reducer][part]

    async def finish(self, runner: Runner, tell: Tell) -> None:
        """Check the part that was chosen, and tell if it is not what its reducer said."""
        parts = runner.tensor_part_container
        if parts.watched is None or parts.seen is None:
            return
        reducer, part = parts.watched
        try:
            received = await asyncio.wait_for(self._collect(runner, reducer, part, tell), PATIENCE_S)
        except Exception as error:
            logger.info("part %d of %s could not be checked: %r", part, runner.ordered_peer_ids[reducer], error)
            return
        usable = {
            sender: (tensor, weight)
            for sender, (tensor, weight) in received.items()
            if not (part_problem(tensor, parts.seen.shape) or weight_problem(weight))
        }
        users = [self.trust.user_of(str(sender)) for sender in usable]
        claimed = torch.tensor([weight for _, weight in usable.values()])
        tensors = [tensor for tensor, _ in usable.values()]
        loop = asyncio.get_running_loop()
        expected, _ = await loop.run_in_executor(None, combine, tensors, claimed, users, self.trust)
        # Not of the longest part: a second liar would only have to send a huge one.
        allowed = TOLERANCE * float(received[runner.peer_id][0].norm() + expected.norm())
        if (difference := float((parts.seen - expected).norm())) > allowed:
            tell(
                runner.ordered_peer_ids[reducer],
                f"its average of part {part} is not what {runner.peer_id} computes from the same peers' tensors: they "
                f"differ by {difference:.3g}, and {allowed:.3g} is allowed. One of the two lies, or a third told them "
                f"different things",
            )

    async def _collect(self, runner: Runner, reducer: int, part: int, tell: Tell) -> dict[PeerID, tuple[Tensor, float]]:
        """Return what each sender says that it sent, with its weight; our own is as the reducer got it.

        Who does not answer is told of, or a liar could have none of his lies checked.
        """
        own = deserialize_torch_tensor(runner.tensor_part_container.sent[reducer][part])
        received = {runner.peer_id: (own, runner.weight)}
        question = averaging_pb2.AveragingData(
            group_id=runner.group_id, tensor_part=runtime_pb2.Tensor(size=[reducer, part])
        )
        others = [peer for peer in runner.sender_peer_ids if peer != runner.peer_id]
        stubs = map(runner._get_peer_stub, others)
        answers = await asyncio.gather(*(stub.rpc_part_sent(question) for stub in stubs), return_exceptions=True)
        for peer, answer in zip(others, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                if answer.code != averaging_pb2.PART_FOR_AVERAGING:
                    raise LookupError(f"it answered {averaging_pb2.MessageCode.Name(answer.code)}")
                received[peer] = deserialize_torch_tensor(answer.tensor_part), answer.weight
            except Exception as error:
                whose = runner.ordered_peer_ids[reducer]
                tell(peer, f"it does not say what it sent to {whose}, whose average cannot be checked: {error!r}")
                raise
        return received
