"""What a peer believes of a reducer's answers: averages within bounds, and weights that can be read."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import as_aiter
from two_peers import two_peers

from dalle_lib.swarm.averaging import answers, in_step
from dalle_lib.swarm.averaging.all_reduce import Runner, Tell, pack_weights, unpack_weights
from dalle_lib.swarm.averaging.answers import within
from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.in_step import AHEAD, InStep
from dalle_lib.swarm.averaging.paces import Paces
from dalle_lib.swarm.averaging.patience import Patience
from dalle_lib.swarm.averaging.rounds import RoundsNow
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload
from dalle_lib.swarm.averaging.waiting import Waiting


class Round:
    """A round whose averages are all there, but for the last."""

    async def rpc_aggregate_part(self, _stream, _context):
        """Answer with one average, and wait for the next."""
        yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART)
        await asyncio.sleep(600)


class Averager(RunAverager, Round):
    """What answers a groupmate, without a network."""

    def __init__(self, allreduce_timeout: float) -> None:
        self.trust, self.upload, self.request_timeout = Trust(), Upload(), 1.0
        self.rounds_now, self._matchmaking = RoundsNow(), None
        self.allreduce_kwargs, self._running_groups = {"sender_timeout": 1.0}, {b"round": None}
        self._allreduce_timeout = allreduce_timeout


def test_a_stream_that_is_not_read_ends_with_its_round(monkeypatch):
    monkeypatch.setattr(answers, "HANG_UP_S", 0.1)

    async def handle() -> None:
        """Send answers as hivemind does, to a caller that reads none."""
        context = SimpleNamespace(remote_id=PeerID(b"eve"))
        request = averaging_pb2.AveragingData(group_id=b"round")
        async for _ in Averager(allreduce_timeout=0.1).rpc_aggregate_part(as_aiter(request), context):
            await asyncio.sleep(600)

    async def ended() -> bool:
        handling = asyncio.create_task(handle())
        await asyncio.wait([handling], timeout=30)
        return handling.cancelled()

    assert asyncio.run(ended())


def test_packed_weights_are_read_as_they_were():
    weights = torch.tensor([0.0, 48.0, 0.1, 3e38, 1e-45])
    assert torch.equal(unpack_weights(pack_weights(weights), 5), weights)


def test_weights_travel_as_little_endian_float32_in_the_order_of_senders():
    assert pack_weights(torch.tensor([1.0, -2.0])) == bytes([0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0])


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")], [1.0, float("inf")], [1.0, -0.5]])
def test_weights_that_no_honest_reducer_tells_are_refused(values):
    with pytest.raises(ValueError, match="expected"):
        unpack_weights(np.array(values, "<f4").tobytes(), 2)
    with pytest.raises(ValueError, match="but got 7 bytes"):
        unpack_weights(b"1234567", 2)


def test_a_reducer_whose_weights_cannot_be_used_is_named_once_and_not_counted():
    told, (ada, eve, stock) = [], map(PeerID, (b"ada", b"eve", b"stock"))
    runner = SimpleNamespace(
        sender_peer_ids=[ada, eve],
        tensor_part_reducer=SimpleNamespace(weights=[torch.tensor([1.0, 3.0])]),
        tell=lambda peer, what: told.append((peer, what)),
        _weights_heard=[],
        _in_step=defaultdict(lambda: InStep(2, 400)),
        _not_understood=set(), _most_counted=torch.tensor([4.0, 10.0]), bytes_received=0, upload=Upload(),
        paces=Paces(), waiting=Waiting(Patience(), None, [], []),
    )  # fmt: skip
    for reducer, packed in (
        (stock, b""),
        (ada, pack_weights(torch.tensor([3.0, 1.0]))),
        (eve, b"123"),
        (eve, pack_weights(torch.tensor([9.0, 9.0]))),
    ):
        Runner._hear(runner, reducer, averaging_pb2.AveragingData(peer_id=packed))
    assert [peer for peer, _ in told] == [eve]
    assert "in 8 bytes, but got 3" in told[0][1]
    assert Runner.counted(runner) == {str(ada): 2.0, str(eve): 2.0}


def test_a_reducer_that_tells_a_peer_more_weight_than_it_can_have_is_named_and_not_believed():
    """Its record says the sum of these: beyond 10^12 all refuse it, and beyond what others saw the peer is flagged."""

    async def hears(weights: list[float]) -> tuple[dict, list]:
        ada, eve = PeerID(b"ada"), PeerID(b"eve")
        told, p2p, trust = [], SimpleNamespace(peer_id=ada), Trust(max_weight=4096.0)
        runner = Runner(
            trust=trust, upload=Upload(), tell=lambda *what: told.append(what), counts=[True, True], p2p=p2p,
            servicer_type=Runner, prefix="round", tensors=[torch.ones(8)], group_id=b"group", weight=64.0,
            ordered_peer_ids=[ada, eve], peer_fractions=(0.0, 1.0),
        )  # fmt: skip
        for _ in range(2):
            runner._hear(eve, averaging_pb2.AveragingData(peer_id=pack_weights(torch.tensor(weights))))
        return runner.counted(), told

    counted, told = asyncio.run(hears([64.0, 4096.0]))
    assert list(counted.values()) == [64.0, 4096.0]
    assert not told
    for lie in [65.0, 1.0], [3.4e38, 64.0], [64.0, 4200.0]:
        counted, ((_eve, what),) = asyncio.run(hears(lie))
        assert not any(weight >= 64.0 for weight in counted.values())
        assert "at most [64.0, 4096.0] are possible" in what


def test_a_part_of_another_size_is_refused_before_it_is_decoded():
    """2 MiB in 4 bits, said to be float64, are 50 MB while they are decoded: in each of eight streams of a sender."""

    async def received(*sizes: int) -> list:
        async def stream():
            for size in sizes:
                yield averaging_pb2.AveragingData(tensor_part=runtime_pb2.Tensor(size=[size], buffer=b"nothing"))

        came, reducer = [], SimpleNamespace(part_shapes=[torch.Size([5]), torch.Size([3])])
        runner = SimpleNamespace(
            tensor_part_reducer=reducer, paces=Paces(), sender_peer_ids=[PeerID(b"eve")], bytes_received=0,
            upload=Upload(), _owed=Counter(), _owes=lambda _: False, waiting=Waiting(Patience(), None, [], []),
        )  # fmt: skip
        async for part in Runner._counting(runner, stream(), 0):
            came.append(part.tensor_part.size[0])
        return came

    assert asyncio.run(received(5, 3)) == [5, 3]
    assert asyncio.run(received(5, 3, 3)) == [5, 3, 3], "the reducer says that it expected no more"
    with pytest.raises(AllreduceException, match=r"its shape is \(4,\), but \(3,\) was expected"):
        asyncio.run(received(5, 4))


def test_a_sender_is_waited_for_once_and_not_for_each_part_anew():
    async def received(pauses_s: list[float], limit_s: float) -> tuple[list[int], str]:
        async def parts():
            for number, pause_s in enumerate(pauses_s):
                await asyncio.sleep(pause_s)
                yield number

        came = []
        try:
            async for part in within(parts(), lambda _waited_s: limit_s):
                came.append(part)
                await asyncio.sleep(0.2)  # this peer's own time, and the others', is not the sender's
        except TimeoutError as error:
            return came, str(error)
        return came, ""

    assert asyncio.run(received([0.0] * 5, 0.5)) == ([0, 1, 2, 3, 4], "")
    came, why = asyncio.run(received([0.2] * 5, 0.5))
    assert len(came) <= 2, "three would have taken 0.6 s"
    assert why == "it kept the others waiting for 0.5 s"


def test_a_sender_that_waits_for_answers_itself_is_waited_for_half_as_long_again():
    async def received(pause_s: float, limit_s: float) -> list[int]:
        async def parts():
            for number in range(3):
                await asyncio.sleep(pause_s)
                yield number

        return [part async for part in within(parts(), lambda _waited_s: limit_s, owes=lambda: True)]

    assert asyncio.run(received(0.1, 0.25)) == [0, 1, 2]
    with pytest.raises(TimeoutError, match="kept the others waiting"):
        asyncio.run(received(600.0, 0.1))


def both(own: dict[P2P, torch.Tensor], tell: Tell = print, trust: Trust = Trust()) -> dict[P2P, Runner]:  # noqa: B008
    """Return the two sides of a round in parts of 100 values, of which the first reduces all."""
    return {
        p2p: Runner(
            trust=trust, upload=Upload(), tell=tell, counts=[True, True], p2p=p2p, servicer_type=Runner,
            prefix="round", tensors=[own[p2p]], group_id=b"group", ordered_peer_ids=[peer.peer_id for peer in own],
            peer_fractions=(1.0, 0.0), part_size_bytes=400,
        )
        for p2p in own
    }  # fmt: skip


async def collected(runner: Runner) -> torch.Tensor:
    return torch.cat([update async for update in runner])


@pytest.mark.parametrize(("trust", "is_taken"), [(Trust(), False), (Trust(is_local=True, max_weight=1e6), True)])
def test_a_reducer_blames_itself_for_no_average_and_ends_the_round_for_nobody(trust, is_taken):
    told = []

    async def averages() -> list[torch.Tensor]:
        async with two_peers(1e9) as (reducer, client, _link):
            own = {reducer: torch.ones(1000), client: torch.full((1000,), 1e6)}
            runners = both(own, lambda *complaint: told.append(complaint), trust)
            for p2p, runner in runners.items():
                await runner.add_p2p_handlers(p2p, namespace="round")
            updates = await asyncio.wait_for(asyncio.gather(*map(collected, runners.values())), 30)
            assert [runner.is_whole for runner in runners.values()] == [is_taken, True]
            return [own[p2p] + update for p2p, update in zip(own, updates, strict=True)]

    kept, average = asyncio.run(averages())
    assert told == []
    torch.testing.assert_close(kept, average if is_taken else torch.ones(1000), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(average, torch.full((1000,), 5e5 + 0.5))


def averages_of(reducer_values: torch.Tensor, client_values: torch.Tensor, prepare: Callable) -> list[torch.Tensor]:
    """Return what both sides have after a round, once `prepare` has changed the reducer's runner and the client's."""

    async def average() -> list[torch.Tensor]:
        async with two_peers(1e9) as (reducer, client, _link):
            own = {reducer: reducer_values, client: client_values}
            runners = both(own)
            for p2p, runner in runners.items():
                await runner.add_p2p_handlers(p2p, namespace="round")
            prepare(runners[reducer], runners[client])
            updates = await asyncio.wait_for(asyncio.gather(*map(collected, runners.values())), 30)
            return [own[p2p] + update for p2p, update in zip(own, updates, strict=True)]

    return asyncio.run(average())


def test_a_peer_that_does_not_reduce_reads_averages_while_it_still_sends():
    sent = []

    def prepare(_reducer: Runner, client: Runner) -> None:
        container, is_read = client.tensor_part_container, asyncio.Event()
        take, give = container.register_processed_part, container.iterate_input_parts_for

        def taken(*result) -> None:
            take(*result)
            is_read.set()

        async def given(index: int):
            async for part in give(index):
                if len(sent) == 9:  # the last one
                    await is_read.wait()
                sent.append(part)
                yield part

        container.register_processed_part, container.iterate_input_parts_for = taken, given

    for average in averages_of(torch.zeros(1000), torch.arange(1000.0), prepare):
        assert torch.equal(average, torch.arange(1000.0) / 2)


def test_a_sender_stays_a_few_parts_ahead_of_the_averages_that_come_back(monkeypatch):
    monkeypatch.setattr(in_step, "ROOM_BYTES", 0)
    monkeypatch.setattr(in_step, "PATIENCE_S", 600.0)
    ahead, heard = [], []

    def prepare(reducer: Runner, client: Runner) -> None:
        average, send, hear = (
            reducer.tensor_part_reducer.accumulate_part,
            client._generate_input_for_peer,
            client._hear,
        )

        async def average_late(sender, part, *others, **weight):
            if sender == 0:
                await asyncio.sleep(0.02)  # in which all parts would be sent
            return await average(sender, part, *others, **weight)

        async def sent(index: int):
            async for part in send(index):
                ahead.append(len(ahead) - len(heard))
                yield part

        def heard_by(*answer) -> None:
            heard.append(answer)
            hear(*answer)

        reducer.tensor_part_reducer.accumulate_part = average_late
        client._generate_input_for_peer, client._hear = sent, heard_by

    for average in averages_of(torch.zeros(1000), torch.arange(1000.0), prepare):
        assert torch.equal(average, torch.arange(1000.0) / 2)
    assert len(ahead) == len(heard) == 10
    assert max(ahead) == AHEAD - 1
