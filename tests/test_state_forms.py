"""A state of another form than the run's is refused before it takes the memory that it claims."""

import pytest
from hivemind.proto import averaging_pb2, runtime_pb2
from state_donor import EXPECTED, STATE, WHOLE, download_from, sent

from dalle_lib.swarm import wire


@pytest.mark.parametrize(("dtype", "size"), [("float64", [2, 3]), ("float32", [2, 3, 10**6]), ("float32", [])])
def test_a_tensor_of_another_form_is_refused_before_it_is_decoded(dtype, size):
    read = []

    async def messages():
        tensor = runtime_pb2.Tensor(dtype=dtype, size=size, chunks=2, buffer=b"nothing that could be decoded")
        first = averaging_pb2.DownloadData(metadata=wire.dumps(STATE[0]), tensor_part=tensor)
        async for message in sent(first, *WHOLE):
            read.append(message)
            yield message

    found, (told,) = download_from(messages(), EXPECTED, 60.0)
    assert found is None
    assert "its tensor 0 is torch.float" in told
    assert len(read) == 1


def test_each_tensor_is_compared_with_the_one_of_its_place():
    more = averaging_pb2.DownloadData(tensor_part=runtime_pb2.Tensor(dtype="float32", size=[10**6], chunks=2))
    found, (told,) = download_from(sent(WHOLE[0], more, more), EXPECTED, 60.0)
    assert found is None
    assert "its tensor 1 is torch.float32 (1000000,), expected torch.uint8 (4,)" in told
