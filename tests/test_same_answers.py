"""What a reducer keeps of answers that are the same for all while their readers are slow."""

import asyncio
from types import SimpleNamespace
from unittest.mock import patch

import torch
from hivemind.compression import serialization
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.all_reduce import Runner, unpack_weights
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload

ADA, BOB, EVE = (PeerID(name) for name in (b"ada", b"bob", b"eve"))


def test_answers_that_wait_for_slow_readers_are_in_memory_once():
    """A message copies its tensor: half of a model for each of 20 peers were 1.3 GB at the size of the paper."""

    async def answered() -> tuple[list, Runner]:
        runner = Runner(
            trust=Trust(), upload=Upload(), tell=print, counts=[True] * 3, p2p=SimpleNamespace(peer_id=ADA),
            servicer_type=Runner, prefix="round", tensors=[torch.linspace(-1, 1, 4096)], group_id=b"group", weight=1.0,
            ordered_peer_ids=[ADA, BOB, EVE], peer_fractions=(1.0, 0.0, 0.0), part_size_bytes=1024,
            compression=codec.compression(256, upload_bits=4),
        )  # fmt: skip

        async def sent():
            for part, info in zip(runner.parts_for_local_averaging, runner.tensor_part_container.infos[0], strict=True):
                tensor = codec.FourBits().compress(part, info)
                yield averaging_pb2.AveragingData(tensor_part=tensor, weight=1.0)

        async def waiting_for(sender: int) -> list:
            return [answer async for answer in runner._answers(sent(), sender)]

        _, *both = await asyncio.gather(runner._communicate_with_peer(ADA), waiting_for(1), waiting_for(2))
        return both, runner

    with patch.dict(serialization._BASE_COMPRESSION_TYPES):
        codec.install()
        both, runner = asyncio.run(answered())
    for answers in both:
        assert len(answers) == 4
        for number, (part, weights) in enumerate(answers):
            assert part is runner._messages[number].result(), "a copy"
            assert unpack_weights(weights, 3).tolist() == [1.0] * 3
