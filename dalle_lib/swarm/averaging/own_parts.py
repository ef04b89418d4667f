"""A peer's parts of a round, and the averages that come back for them, of which it believes only possible ones."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator

import torch
from hivemind.averaging.partition import TensorPartContainer
from hivemind.compression import CompressionInfo
from hivemind.proto import runtime_pb2
from torch import Tensor

from dalle_lib.aggregation import part_problem

logger = logging.getLogger(__name__)

RESULT_BOUND = 3.0
"""The largest norm of all averages of one reducer that is believed, in multiples of that of all this peer puts in."""


class Parts(TensorPartContainer):
    """hivemind's container of a peer's parts, which refuses impossible averages and can keep the messages it sent."""

    bytes_sent = 0
    """Bytes of the parts that were sent to reducers."""

    def __init__(self, *args, keeps_sent: bool, own: int | None = None, **kwargs) -> None:
        """Take hivemind's options, and the index of this peer if it may reduce."""
        super().__init__(*args, **kwargs)
        self.keeps_sent, self.own = keeps_sent, own
        self.sent: list[list[runtime_pb2.Tensor]] = [[] for _ in range(self.group_size)]
        """Messages sent to each reducer, in order; empty unless `keeps_sent`."""
        self.left_out_from: dict[int, int] = {}
        """The first part without which each reducer went on that has said so, by its index."""
        self.infos: list[list[CompressionInfo]] = [[info for _, info in parts] for parts in self._input_parts_by_peer]
        """How each part for each reducer is to be compressed."""
        self.longest = RESULT_BOUND * math.hypot(*(float(tensor.norm()) for tensor in self.local_tensors))
        """The largest norm of all averages of a reducer that is believed; 0 where any is."""
        self._lengths = [0.0] * self.group_size
        self._watched: dict[tuple[int, int], asyncio.Future[Tensor]] = {}

    @classmethod
    def instead_of(cls, made: TensorPartContainer, keeps_sent: bool, own: int) -> "Parts":
        """Return a container of the same tensors with the same options as one that hivemind has made."""
        options = {name: getattr(made, name) for name in ("compression", "part_size_bytes", "tensor_infos", "prefetch")}
        options["return_deltas"] = not hasattr(made.compression, "answers")
        return cls(made.local_tensors, made.peer_fractions, **options, keeps_sent=keeps_sent, own=own)

    def shapes_for(self, peer_index: int) -> list[torch.Size]:
        """Return the shapes of the parts for a reducer, in order."""
        return [part.shape for part, _info in self._input_parts_by_peer[peer_index]]

    def watch(self, peer_index: int, part_index: int) -> asyncio.Future[Tensor]:
        """Return a future of the average that a reducer will give for one of its parts; cancelled if it fails."""
        average = self._watched[peer_index, part_index] = asyncio.get_running_loop().create_future()
        return average

    async def iterate_input_parts_for(self, peer_index: int) -> AsyncIterator[runtime_pb2.Tensor]:
        """Iterate over the messages for a reducer, counting their bytes and keeping them if that is asked for."""
        async for message in super().iterate_input_parts_for(peer_index):
            self.bytes_sent += message.ByteSize()
            if self.keeps_sent:
                self.sent[peer_index].append(message)
            yield message

    def register_processed_part(self, peer_index: int, part_index: int, part: Tensor) -> None:
        """Take over a result, which is the average, or if `return_deltas` the average minus this peer's own part.

        Raises ValueError for one of another shape, one that is not finite, or one too long to be an average. If this
        peer has reduced that itself, nobody has lied to it: it keeps its own values in that part.
        """
        own = self._input_parts_by_peer[peer_index][part_index][0]
        if (problem := part_problem(part, own.shape)) is None:
            average = own + part if self.return_deltas else part
            length = math.hypot(self._lengths[peer_index], float(average.norm()))
            if length > self.longest > 0:
                problem = f"its averages have norm {length:.3g}, and at most {self.longest:.3g} is believed"
        if problem is None:
            self._lengths[peer_index] = length
            if (watched := self._watched.get((peer_index, part_index))) is not None and not watched.done():
                watched.set_result(average)
            super().register_processed_part(peer_index, part_index, part)
        elif peer_index == self.own:
            logger.warning("this peer has its own values in part %d of what it reduces: %s", part_index, problem)
            self._keep_own(peer_index, part_index)
        else:
            raise ValueError(problem)

    def register_failed_reducer(self, peer_index: int) -> None:
        """Keep this peer's own values in the parts that a reducer has not given back."""
        for (reducer, _part), average in self._watched.items():
            if reducer == peer_index:
                average.cancel()
        for index in range(self._outputs_registered_by_peer[peer_index], self.num_parts_by_peer[peer_index]):
            self._keep_own(peer_index, index)

    def _keep_own(self, peer_index: int, part_index: int) -> None:
        # hivemind registers these as if they were a reducer's: one that is not finite would be refused.
        own = self._input_parts_by_peer[peer_index][part_index][0]
        super().register_processed_part(peer_index, part_index, torch.zeros_like(own) if self.return_deltas else own)
        self.failed_size += own.numel()
