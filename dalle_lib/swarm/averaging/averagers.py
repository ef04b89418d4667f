"""The averagers of gradients and of parameters: hivemind's, with members only, and rounds that tell what they hold."""

import asyncio
import contextlib
import logging
import multiprocessing
import queue
import statistics
import time
from dataclasses import replace
from typing import AsyncIterator  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

import torch
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.group_info import GroupInfo
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager, dump_optimizer_state, load_optimizer_state
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture
from hivemind.utils.asyncio import achain, as_aiter

from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.audit import Auditor
from dalle_lib.swarm.averaging.donors import ExpectedState, download
from dalle_lib.swarm.averaging.matchmaking import LOOK_EVERY_S, MemberMatchmaking, introductions, with_role
from dalle_lib.swarm.averaging.rounds import Group
from dalle_lib.swarm.averaging.tasks import KeepsTasks
from dalle_lib.swarm.averaging.trust import Introduction, Trust

logger = logging.getLogger(__name__)

PROBLEMS_KEPT = 1000
HANG_UP_S = 3.0


class RunAverager(KeepsTasks):
    """What the kit's averagers have in common; put before a class of hivemind.

    Most methods run in the averager's own process; what `_aggregate_with_group` returns reaches the caller of `step`.
    """

    wire_type: type[DecentralizedAverager]
    is_by_epoch = False
    """Whether it averages with peers of the same epoch alone."""
    introduction = Introduction()
    """What the next round's group is told; the owner keeps it up to date."""
    _rpc_handlers = _stub_type = None  # hivemind's classes have no rpc_part_sent

    def __init__(self, *args, trust: Trust, **kwargs) -> None:
        self.trust = trust
        self.problems = multiprocessing.Queue(PROBLEMS_KEPT)
        """What went wrong with a peer, as (its id, what)."""
        self.auditor = Auditor(trust)
        super().__init__(*args, **kwargs)

    def schedule_step(self, scheduled_time=None, **kwargs):
        """Begin to look for a group, as hivemind does, and introduce this peer to it."""
        kwargs["gather"] = list(self.introduction)
        return super().schedule_step(scheduled_time, **kwargs)

    async def _step(self, **kwargs) -> None:
        # The matchmaker is made in this process, so this is the first place that can reach it.
        if not isinstance(self._matchmaking, MemberMatchmaking):
            MemberMatchmaking.take_over(self._matchmaking, self.trust, self.is_by_epoch)
            if self.client_mode:  # it serves nothing else, but whom it has connected to may ask what it sent
                await self._serve_part_sent()
        await super()._step(**kwargs)

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Lead a peer that asks for it, if it may take part."""
        if not isinstance(self._matchmaking, MemberMatchmaking):
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_LOOKING_FOR_GROUP)
            return
        if (problem := await self._matchmaking.refusal(context.remote_id, request)) is not None:
            self.tell(context.remote_id, f"was not let into a group: {problem}")
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async for message in _until_hung_up(super().rpc_join_group(request, context)):
            yield message

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Average a groupmate's parts; one that starts before us is made to wait.

        hivemind 1.1.12 means to do so too, but turns it away if one of our earlier rounds ends in that moment: each
        then averages without the other, after a time-out that sets off the next one.
        """
        if (problem := await self.trust.refusal(str(context.remote_id))) is not None:
            self.tell(context.remote_id, f"may not send tensors: {problem}")
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        request = await anext(stream)
        deadline = time.monotonic() + (self.allreduce_kwargs["sender_timeout"] or self.request_timeout)
        while request.group_id not in self._running_groups and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S / 10)
        async for message in _until_hung_up(super().rpc_aggregate_part(achain(as_aiter(request), stream), context)):
            yield message

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Send this peer's state to one that may have it."""
        if (problem := await self.trust.refusal(str(context.remote_id))) is not None:
            self.tell(context.remote_id, f"was refused our state: {problem}")
            return
        async for message in _until_hung_up(super().rpc_download_state(request, context)):
            yield message

    async def rpc_part_sent(
        self, request: averaging_pb2.AveragingData, context: P2PContext
    ) -> averaging_pb2.AveragingData:
        """Tell a groupmate what we sent to a reducer, so that it can reduce that part a second time."""
        return self.auditor.answer(request, context.remote_id)

    async def _serve_part_sent(self) -> None:
        name = self._get_handle_name(self.prefix, "rpc_part_sent")
        await self._p2p.add_protobuf_handler(name, self.rpc_part_sent, averaging_pb2.AveragingData)

    async def _aggregate_with_group(self, group_info: GroupInfo, min_vector_size: int, **kwargs) -> Group:
        told = introductions(group_info.gathered)
        gathered = tuple(
            with_role(message, self.trust.may_reduce(str(peer)))
            for peer, message in zip(group_info.peer_ids, group_info.gathered, strict=True)
        )
        await super()._aggregate_with_group(replace(group_info, gathered=gathered), min_vector_size, **kwargs)
        runner = self._last_run
        epochs = [t.epoch for t in told if t.epoch is not None]
        return Group(
            counted=runner.counted(),
            epoch=statistics.median_high(epochs) if epochs else None,
            is_behind=len(set(epochs)) > 1 or any(t.is_behind for t in told),
            is_whole=runner.is_whole,
            bytes_sent=runner.bytes_sent,
        )

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        self._last_run = runner = Runner(
            trust=self.trust,
            tell=self.tell,
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group_info.group_id,
            ordered_peer_ids=group_info.peer_ids,
            **kwargs,
        )
        check = self.auditor.begin(runner)
        self._running_groups[group_info.group_id].set_result(runner)
        index = 0
        async for update in runner:
            tensors[index].add_(update, alpha=self._averaging_alpha)
            index += 1
        if check is not None:
            asyncio.create_task(self.auditor.finish(check, self.tell))  # noqa: RUF006  (kept by KeepsTasks)

    def tell(self, peer: PeerID, what: str) -> None:
        """Note what went wrong with a peer; when nobody reads the notes, later ones are in the log alone."""
        logger.warning("%s: %s", peer, what)
        with contextlib.suppress(queue.Full):
            self.problems.put_nowait((str(peer), what))

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        # The names on the wire are those of hivemind's class, so that its peers and ours find each other.
        return cls.wire_type._get_handle_name(namespace, method_name)


async def _until_hung_up(answers: AsyncIterator) -> AsyncIterator:
    """Iterate over the answers to a call, and leave it to the caller to hang up; peers of plain hivemind never do.

    The daemon of hivemind 1.1.12 resets a stream that the answering side closes, and what was sent last may be lost.
    """
    is_answered = False
    async for answer in answers:
        yield answer
        is_answered = True
    if is_answered:
        await asyncio.sleep(HANG_UP_S)


class RunStateAverager(RunAverager, TrainingStateAverager):
    """hivemind's averager of parameters."""

    wire_type = TrainingStateAverager
    is_by_epoch = True  # parameters of another epoch would take back an update, or bring it a second time
    max_epoch: int

    def get_current_state(self):
        """Return a copy of the state for whoever asked for it.

        hivemind 1.1.12 sends the tensors themselves, while the next step goes on changing them.
        """
        with self.lock_optimizer:
            metadata, tensors, infos = super().get_current_state()
            with self.lock_averaged_tensors:
                return metadata, [tensor.clone() for tensor in tensors], infos

    def load_state_from_peers(self, timeout: float) -> bool:
        """Take over parameters, statistics and epoch of another peer; return whether there was one that fits.

        Of the optimizer only tensors are taken over: settings (rates, decays) are the run card's, whatever a donor
        says. A donor that is silent for `timeout` seconds is given up.
        """
        _metadata, own_tensors, _infos = super().get_current_state()
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in own_tensors)
        expected, future = ExpectedState(shapes, self.local_epoch, self.max_epoch), MPFuture()
        self._outer_pipe.send(("_download_state", [], {"expected": expected, "timeout": timeout, "future": future}))
        if (loaded := future.result()) is None:
            return False
        metadata, tensors = loaded
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        own_layout, _ = dump_optimizer_state(self.optimizer)
        with torch.no_grad(), self.lock_averaged_tensors:
            load_optimizer_state(self.optimizer, own_layout, tensors[len(parameters) :])
            torch._foreach_copy_(parameters, tensors[: len(parameters)])
        self._apply_optimizer_parameters_()
        self.local_epoch = metadata["epoch"]
        self._update_scheduler()
        return True

    async def _download_state(self, expected: ExpectedState, timeout: float, future: MPFuture) -> None:
        try:
            future.set_result(await download(self, expected, timeout))
        except Exception as error:
            future.set_exception(error)


class RunGradientAverager(RunAverager, GradientAverager):
    """hivemind's gradient averager."""

    wire_type = GradientAverager
    is_counted = True
    """Whether this peer's gradients are of parameters that the others know."""

    def step(self, weight: float | None = None, **kwargs):
        """Begin a round, as hivemind does; gradients of outdated parameters take part without weight."""
        return super().step(weight=weight if self.is_counted else 0.0, **kwargs)
