"""The answers of one reducer, of which each is heard, and none is decoded that cannot be the average of its part."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import torch
from hivemind.p2p import StubBase
from hivemind.proto import averaging_pb2

DTYPE = "float32"
"""What averages, and their differences from parts, are: a message of few bits may say that it is of more."""


class Listening:
    """The stub of a reducer, which tells of each answer and hangs up after the last part."""

    def __init__(
        self, stub: StubBase, hear: Callable[[averaging_pb2.AveragingData], None], shapes: Sequence[torch.Size]
    ) -> None:
        """`shapes` are those of the parts that the reducer gets, in order."""
        self._stub, self._hear, self._shapes = stub, hear, shapes

    def __getattr__(self, name: str):
        return getattr(self._stub, name)

    async def rpc_aggregate_part(self, parts: AsyncIterator[averaging_pb2.AveragingData]):
        """Return the averages of parts, as hivemind's stub does; they raise ValueError for one of another size."""
        return self._heard(await self._stub.rpc_aggregate_part(parts))

    async def _heard(self, answers: AsyncIterator[averaging_pb2.AveragingData]):
        async with contextlib.aclosing(answers):
            for shape in self._shapes:
                if (answer := await anext(answers, None)) is None:
                    return
                self._hear(answer)
                size, dtype = tuple(answer.tensor_part.size), answer.tensor_part.dtype
                if answer.code == averaging_pb2.AVERAGED_PART and (size, dtype) != (tuple(shape), DTYPE):
                    raise ValueError(f"its average is {dtype:.40} {size!s:.80}, expected {DTYPE} {tuple(shape)}")
                yield answer
