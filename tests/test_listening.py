"""What a peer lets a reducer answer: the averages of its parts, as many and as long as these are."""

import asyncio

import pytest
import torch
from hivemind.p2p import StubBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import as_aiter

from dalle_lib.swarm.averaging.listening import Listening

SHAPES = [torch.Size([5]), torch.Size([3])]
AVERAGE = averaging_pb2.AVERAGED_PART


def read(*answers: tuple) -> tuple[list, list]:
    """Return which answers are heard, and which may be decoded, of those with a code, dtype and size each."""
    sent = [
        averaging_pb2.AveragingData(code=code, tensor_part=runtime_pb2.Tensor(dtype=dtype, size=size))
        for code, dtype, *size in answers
    ]
    heard, decoded = [], []

    class Stub(StubBase):
        def __init__(self) -> None:
            """Reach nobody."""

        async def rpc_aggregate_part(self, _parts):
            return as_aiter(*sent)

    async def listen() -> None:
        async for answer in await Listening(Stub(), heard.append, SHAPES).rpc_aggregate_part(as_aiter()):
            decoded.append(answer)

    try:
        asyncio.run(listen())
    except ValueError as error:
        return heard, [*decoded, str(error)]
    return heard, decoded


def test_averages_of_the_parts_are_heard_and_may_be_decoded_and_nothing_after_them():
    heard, decoded = read((AVERAGE, "float32", 5), (AVERAGE, "float32", 3), (AVERAGE, "float32", 9))
    assert heard == decoded
    assert [list(answer.tensor_part.size) for answer in decoded] == [[5], [3]]
    assert len(read((AVERAGE, "float32", 5))[1]) == 1, "who missed the rest is told by the number"


@pytest.mark.parametrize(
    "second",
    [(AVERAGE, "float32", 4), (AVERAGE, "float64", 3), (AVERAGE, "", 3), (AVERAGE, "float32", 3, 2**30)],
    ids=["of another part", "of more bits", "of no type", "huge"],
)
def test_an_answer_of_another_size_or_type_is_refused_before_it_is_decoded(second):
    heard, (first, why) = read((AVERAGE, "float32", 5), second)
    assert len(heard) == 2, "its bytes have come"
    assert list(first.tensor_part.size) == [5]
    assert why == f"its average is {second[1]} {second[2:]}, expected float32 (3,)"


def test_a_reducer_may_say_that_it_goes_on_without_this_peer():
    assert [answer.code for answer in read((averaging_pb2.CANCELLED, ""))[1]] == [averaging_pb2.CANCELLED]
