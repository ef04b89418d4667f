"""Rounds whose answers are the average itself, in the same bytes for all: for uploads of fewer bits than answers.

hivemind answers each sender with the average minus that sender's part, in the sender's own compression, and the sender
adds this to the tensor that it had before compression. In 4 bits each peer would keep a tenth of its own gradient as
its own error. Here a reducer encodes each average once, and takes over what it has encoded, as all others do.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.partition import BannedException
from hivemind.compression import CompressionBase, deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import amap_in_executor
from torch import Tensor


class Answered(NamedTuple):
    """An answer that waits for its reader, without the copy that each message has of its tensor."""

    tensor_part: runtime_pb2.Tensor


class SameAnswers(AllReduceRunner):
    """hivemind's all-reduce; where its compression says how `answers` are sent, these are averages, not differences."""

    answers: CompressionBase | None
    """How averages are sent; None for hivemind's differences. The subclass sets it."""
    _messages: dict[int, asyncio.Future[runtime_pb2.Tensor]]
    """The answer for each part that this peer has reduced so far; the subclass makes it."""

    async def _answer(self, part_index: int, average: Tensor) -> runtime_pb2.Tensor:
        """Return the message for the average of a part, which is encoded once."""
        if part_index not in self._messages:
            self._messages[part_index] = self._encode(part_index, average)
        return await asyncio.shield(self._messages[part_index])

    def _encode(self, part_index: int, average: Tensor) -> asyncio.Future[runtime_pb2.Tensor]:
        info = self.tensor_part_container.infos[self.ordered_peer_ids.index(self.peer_id)][part_index]
        return asyncio.get_running_loop().run_in_executor(None, self.answers.compress, average, info)

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if self.answers is None or peer_id != self.peer_id:
            await super()._communicate_with_peer(peer_id)
            return
        place, sender = self.ordered_peer_ids.index(peer_id), self.sender_peer_ids.index(peer_id)
        for index, part in enumerate(self.parts_for_local_averaging):
            average = await self.tensor_part_reducer.accumulate_part(sender, index, part, weight=self.weight)
            received = deserialize_torch_tensor(await self._answer(index, average))
            self.tensor_part_container.register_processed_part(place, index, received)

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData | Answered]:
        if self.answers is None:
            async for message in super()._accumulate_parts_streaming(stream, sender_index):
                yield message
            return
        count = 0
        decoded = amap_in_executor(
            lambda sent: (deserialize_torch_tensor(sent.tensor_part), sent.weight),
            stream,
            max_prefetch=self.tensor_part_container.prefetch,
        )
        try:
            async for part, weight in decoded:
                average = await self.tensor_part_reducer.accumulate_part(sender_index, count, part, weight=weight)
                count += 1
                answer = await self._answer(count - 1, average)
                yield Answered(answer)
        except BannedException:
            return  # the parts that it has sent before count
        finally:
            if count != self.tensor_part_reducer.num_parts:
                await self._ban_sender(self.sender_peer_ids[sender_index])
