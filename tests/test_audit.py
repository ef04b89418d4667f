"""A round of three peers in this process, over libp2p: who counted for what, and audits of reducers."""

import asyncio
import weakref
from types import SimpleNamespace
from typing import AsyncIterator  # noqa: UP035  (hivemind reads the type of a stream by typing's name)

import pytest
import torch
from attacks import LyingRunner as Lying
from hivemind.compression import NoCompression, deserialize_torch_tensor, serialization
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import averaging_pb2

from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.all_reduce import Runner
from dalle_lib.swarm.averaging.answers import until_hung_up
from dalle_lib.swarm.averaging.audit import Auditor
from dalle_lib.swarm.averaging.own_parts import Parts
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload

pytestmark = pytest.mark.peers

SIZES = (30, 42)
WEIGHTS = (1.0, 2.0, 5.0)


@pytest.fixture
def installed(monkeypatch):
    """Puts our codecs into hivemind's registry until the test ends."""
    monkeypatch.setattr(serialization, "_BASE_COMPRESSION_TYPES", dict(serialization._BASE_COMPRESSION_TYPES))
    codec.install()


class AuditedRunner(Runner):
    """A runner whose peer lets callers hang up, and answers auditors, as RunAverager does."""

    auditor: Auditor

    @classmethod
    def _get_handle_name(cls, namespace: str, method_name: str) -> str:
        return f"{namespace}.{method_name}"

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Answer parts with their averages."""
        async for message in until_hung_up(super().rpc_aggregate_part(stream, context)):
            yield message

    async def rpc_part_sent(
        self, request: averaging_pb2.AveragingData, context: P2PContext
    ) -> averaging_pb2.AveragingData:
        """Answer what this peer sent to a reducer."""
        return self.auditor.answer(request, context.remote_id)


class LyingRunner(Lying, AuditedRunner):
    """A runner whose reducer lies to the others."""


async def round_of_three(
    last: type[AuditedRunner], audits: float, upload_bits: int = 8, others: type[AuditedRunner] = AuditedRunner
) -> tuple[list, list[Runner], list[tuple]]:
    """Return each peer's average, its runner, and (teller, accused, what) of all that was told.

    With 8 bits, all values are equal, and travel as they are.
    """
    compression = NoCompression() if upload_bits == 8 else codec.compression(1, upload_bits)
    peers, addresses = [], []
    for _ in range(3):
        peers.append(await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=addresses))
        addresses = [*addresses, *map(str, await peers[-1].get_visible_maddrs())]
    trust, told = Trust(audits=audits), []
    ids = tuple(peer.peer_id for peer in peers)
    generator, noise = torch.Generator().manual_seed(0), float(upload_bits == 4)
    tensors = [[number + noise * torch.randn(size, generator=generator) for size in SIZES] for number in range(3)]
    runners = [
        kind(
            trust=trust,
            upload=Upload(),
            tell=lambda accused, what, teller=peer.peer_id: told.append((teller, accused, what)),
            p2p=peer,
            servicer_type=AuditedRunner,
            prefix="round",
            group_id=b"round",
            tensors=own,
            weight=weight,
            ordered_peer_ids=ids,
            peer_fractions=(1.0, 1.0, 1.0),
            counts=(True, True, True),
            part_size_bytes=12 * (4 if upload_bits == 8 else 1),  # in 4 bits a part is as long as its answer in 8
            compression=compression,
        )
        for kind, peer, own, weight in zip((others, others, last), peers, tensors, WEIGHTS, strict=True)
    ]
    checks = []
    for runner in runners:
        runner.auditor = Auditor(trust)
        checks.append(runner.auditor.begin(runner, ids))
        await runner.add_p2p_handlers(runner._p2p, namespace="round")

    async def average(runner: Runner, own: list[torch.Tensor]) -> list[torch.Tensor]:
        updates = [update async for update in runner]
        return updates if runner.answers else [tensor + update for tensor, update in zip(own, updates, strict=True)]

    averages = await asyncio.gather(*map(average, runners, tensors))
    for runner, check in zip(runners, checks, strict=True):
        if check is not None:
            await runner.auditor.finish(check, runner.tell)
    for peer in peers:
        await peer.shutdown()
    return averages, runners, told


def test_all_get_the_mean_and_know_whose_tensors_it_holds():
    averages, runners, told = asyncio.run(asyncio.wait_for(round_of_three(AuditedRunner, audits=3.0), 30))
    assert not told
    expected = sum(weight * number for number, weight in enumerate(WEIGHTS)) / sum(WEIGHTS)
    for runner, average in zip(runners, averages, strict=True):
        torch.testing.assert_close(torch.cat(average), torch.full((sum(SIZES),), expected))
        assert list(runner.counted().values()) == list(WEIGHTS)
        assert runner.is_whole
        assert runner.bytes_sent > 0
        # Answers are held back and counted where RunAverager gives them.
        assert runner.upload.sent_bytes > runner.tensor_part_container.bytes_sent > 0
        assert runner.upload.received_bytes > runner.bytes_received
    assert sum(runner.bytes_received for runner in runners) == sum(runner.bytes_sent for runner in runners)


def test_with_uploads_of_4_bits_all_get_the_same_bytes_of_an_average_in_8_bits(installed):
    for _ in range(5):  # each peer checks one of two reducers in each
        averages, runners, told = asyncio.run(asyncio.wait_for(round_of_three(AuditedRunner, 3.0, upload_bits=4), 30))
        assert not told
    assert torch.equal(torch.cat(averages[0]), torch.cat(averages[1]))
    assert torch.equal(torch.cat(averages[0]), torch.cat(averages[2]))
    sent = [torch.cat(runner.tensor_part_container.local_tensors) for runner in runners]
    mean = sum(weight * tensor for weight, tensor in zip(WEIGHTS, sent, strict=True)) / sum(WEIGHTS)
    assert 0.01 < (torch.cat(averages[0]) - mean).norm() / mean.norm() < 0.1
    for runner in runners:
        assert list(runner.counted().values()) == list(WEIGHTS)
    assert sum(runner.bytes_received for runner in runners) == sum(runner.bytes_sent for runner in runners)


@pytest.mark.parametrize("upload_bits", [8, 4])
def test_an_audit_names_a_reducer_that_lies_and_no_other(installed, upload_bits):
    caught = []
    for _ in range(10):  # each of the two auditors checks one of two reducers
        _, runners, told = asyncio.run(asyncio.wait_for(round_of_three(LyingRunner, 3.0, upload_bits), 30))
        caught = [accused for _, accused, what in told if "is not what" in what]
        if caught:
            break
    assert set(caught) == {runners[2].peer_id}


class Impatient(AuditedRunner):
    """A runner whose reducer goes on without what the last peer sends after its first part."""

    async def _counting(self, parts, sender_index: int):
        async for part in super()._counting(parts, sender_index):
            yield part
            if sender_index == len(self.sender_peer_ids) - 1:
                raise TimeoutError("it kept the others waiting")


def test_an_audit_names_no_reducer_that_went_on_without_a_slow_sender():
    for _ in range(5):  # each of the two auditors checks one of two reducers, and one of eight parts
        _, runners, told = asyncio.run(asyncio.wait_for(round_of_three(AuditedRunner, 3.0, others=Impatient), 30))
        slow = runners[2].peer_id
        assert {accused for _, accused, _ in told} == {slow}
        assert {what.split(":")[0] for teller, _, what in told if teller != slow} == {"its tensors came too slowly"}


def test_an_auditor_is_answered_and_nothing_else_of_the_round_is_kept():
    own, eve = PeerID(b"own"), PeerID(b"eve")

    async def answers() -> list[averaging_pb2.AveragingData]:
        parts = Parts([torch.ones(8), torch.ones(8)], (8, 8), return_deltas=True, keeps_sent=True)
        runner = Runner.__new__(Runner)  # without a network
        runner.group_id, runner.peer_id, runner.weight = b"round", own, WEIGHTS[1]
        runner.ordered_peer_ids = runner.sender_peer_ids = (own, eve)
        runner.tensor_part_container = parts
        runner.parts_for_local_averaging = parts.get_raw_input_parts(0)
        assert [message async for message in parts.iterate_input_parts_for(1)]
        auditor, kept = Auditor(Trust(audits=1.0)), weakref.ref(runner)
        auditor.begin(runner, (own, eve))
        del runner
        assert kept() is None, "the averages of the round are kept with it"
        questions = [{"size": [1, 0]}, {"size": [0, 0]}, {"size": [1, 0]}]
        return [
            auditor.answer(averaging_pb2.AveragingData(group_id=b"round", tensor_part=question), eve)
            for question in questions
        ]

    *answered, one_more = asyncio.run(answers())
    for answer in answered:
        assert torch.equal(deserialize_torch_tensor(answer.tensor_part), torch.ones(8))
        assert answer.weight == WEIGHTS[1]
    assert (one_more.code, one_more.ByteSize() < 10) == (averaging_pb2.PROTOCOL_VIOLATION, True)


@pytest.mark.parametrize(
    ("senders", "reducers", "reachable", "told"),
    [
        ("abc", "a", "ab", None),
        ("abc", "ab", "ab", None),
        ("abc", "abc", "a", None),
        ("abc", "a", "a", "no peer besides the only reducer can be reached"),
        ("ab", "ab", "ab", "no third peer is there to ask"),
    ],
)
def test_a_round_that_nobody_can_check_says_so(senders, reducers, reachable, told):
    ids = {name: PeerID(name.encode()) for name in senders}
    runner = Runner.__new__(Runner)
    runner.ordered_peer_ids = runner.sender_peer_ids = tuple(ids.values())
    runner.tensor_part_container = SimpleNamespace(num_parts_by_peer=[int(name in reducers) for name in senders])
    there = [ids[name] for name in reachable]
    assert Auditor(Trust(audits=3.0)).obstacle(runner, there) == told
    assert Auditor(Trust()).obstacle(runner, there) is None
