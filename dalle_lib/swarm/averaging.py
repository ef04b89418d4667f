"""Gradient averaging that tells whose gradients it holds."""

import asyncio
import time
from typing import AsyncIterator, NamedTuple  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

import torch
from hivemind.averaging import allreduce
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.partition import TensorPartReducer
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter

LOOK_EVERY_S = 0.3
Counted = dict[str, float]
"""Samples that each peer's gradient counted for in an average, by peer id."""


class Group(NamedTuple):
    """Who was in a round."""

    counted: Counted
    epoch: int
    """The latest epoch among them."""


class CountingReducer(TensorPartReducer):
    """hivemind's reducer, which also notes the weight of each sender in each part that it averages."""

    def __init__(self, part_shapes, num_senders: int) -> None:
        self.weights = torch.zeros(len(part_shapes), num_senders)
        super().__init__(part_shapes, num_senders)

    async def accumulate_part(self, sender_index: int, part_index: int, tensor_part, weight: float = 1.0):
        """Add one sender's part to the average, as hivemind does."""
        self.weights[part_index, sender_index] = weight
        return await super().accumulate_part(sender_index, part_index, tensor_part, weight)

    def counted(self, sender_ids: list) -> Counted:
        """Return the mean weight of each sender over this peer's parts; empty if it reduced none."""
        if not len(self.weights):
            return {}
        return {str(peer): float(weight) for peer, weight in zip(sender_ids, self.weights.mean(0), strict=True)}


class CountingRunner(allreduce.AllReduceRunner):
    """hivemind's all-reduce with a counting reducer."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tensor_part_reducer.num_senders = 0  # or it would warn, when it is dropped here, that nothing came
        self.tensor_part_reducer = CountingReducer(
            tuple(part.shape for part in self.parts_for_local_averaging), len(self.sender_peer_ids)
        )

    def counted(self) -> Counted:
        """Return whose gradients this peer has averaged, and for how many samples each counted."""
        return self.tensor_part_reducer.counted(self.sender_peer_ids)


class PacedKeyManager(GroupKeyManager):
    """hivemind's view of who else looks for a group, which pauses between looks.

    hivemind 1.1.12 looks again as soon as the last look is done: on a fast network a peer that waits for its group
    keeps half a core, and everybody's hash table, busy.
    """

    last_look = 0.0

    async def get_averagers(self, *args, **kwargs):
        """Return the averagers that look for a group, at most once in LOOK_EVERY_S."""
        await asyncio.sleep(max(0.0, self.last_look + LOOK_EVERY_S - time.monotonic()))
        self.last_look = time.monotonic()
        return await super().get_averagers(*args, **kwargs)


class KeepsTasks:
    """Keeps what an averager's process is doing alive until it is done.

    asyncio holds its tasks by weak references only, and hivemind 1.1.12 by none: now and then the garbage collector
    ends a round, or a groupmate's message, that still waits for something ("Task was destroyed but it is pending").
    The others then wait for this peer until they time out.
    """

    async def _step(self, **kwargs) -> None:
        alive = _keep_tasks(asyncio.get_running_loop())
        alive.add(asyncio.current_task())
        try:
            await super()._step(**kwargs)
        finally:
            alive.discard(asyncio.current_task())


def _keep_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task]:
    """Make `loop` hold each new task until it is done, and return the set that holds them."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskKeeper):
        factory = _TaskKeeper()
        loop.set_task_factory(factory)
    return factory.alive


class _TaskKeeper:
    def __init__(self) -> None:
        self.alive: set[asyncio.Task] = set()

    def __call__(self, loop, coroutine, **kwargs) -> asyncio.Task:
        task = asyncio.Task(coroutine, loop=loop, **kwargs)
        self.alive.add(task)
        task.add_done_callback(self.alive.discard)
        return task


class StateAverager(KeepsTasks, TrainingStateAverager):
    """hivemind's averager of parameters, under its name on the wire."""

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        return TrainingStateAverager._get_handle_name(namespace, method_name)


class CountingGradientAverager(KeepsTasks, GradientAverager):
    """hivemind's gradient averager whose rounds return who was in them.

    Most methods below run in the averager's own process; what `_aggregate_with_group` returns reaches the caller of
    `step`. A peer that reduces nothing (client mode) learns who was in its group, but not what they counted for.
    """

    epoch = 0
    """The epoch whose gradients the next round averages; the owner keeps it up to date."""

    def schedule_step(self, scheduled_time=None, **kwargs):
        """Begin to look for a group, as hivemind does, and tell it our epoch."""
        return super().schedule_step(scheduled_time, gather=self.epoch, **kwargs)

    async def _step(self, **kwargs) -> None:
        # The matchmaker is made in this process, so this is the first place that can reach it.
        self._matchmaking.group_key_manager.__class__ = PacedKeyManager
        await super()._step(**kwargs)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Average a groupmate's parts; one that starts before us is made to wait.

        hivemind 1.1.12 means to do so too, but turns it away if one of our earlier rounds ends in that moment: each
        then averages without the other, after a time-out that sets off the next one.
        """
        request = await anext(stream)
        deadline = time.monotonic() + self.allreduce_kwargs["sender_timeout"]
        while request.group_id not in self._running_groups and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S / 10)
        async for message in super().rpc_aggregate_part(achain(as_aiter(request), stream), context):
            yield message

    async def _run_allreduce_inplace_(self, tensors, group_info, group_id=None, **kwargs) -> None:
        runner = CountingRunner(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group_info.group_id,
            ordered_peer_ids=group_info.peer_ids,
            **kwargs,
        )
        self._running_groups[group_info.group_id].set_result(runner)
        index = 0
        async for update in runner:
            tensors[index].add_(update, alpha=self._averaging_alpha)
            index += 1
        self._counted = runner.counted() or {str(peer): float("nan") for peer in group_info.peer_ids}

    async def _aggregate_with_group(self, group_info, min_vector_size: int, **kwargs) -> Group:
        epochs = await super()._aggregate_with_group(group_info, min_vector_size, **kwargs)
        return Group(self._counted, max(epoch for epoch in epochs.values() if isinstance(epoch, int)))

    @classmethod
    def _get_handle_name(cls, namespace, method_name):
        # The names on the wire are those of hivemind's class, so that its peers and ours find each other.
        return GradientAverager._get_handle_name(namespace, method_name)
