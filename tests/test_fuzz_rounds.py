"""What strangers send in a round, and of themselves, is used or refused: tensors, states, audits, progress, words."""

import asyncio
import contextlib
import math
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
from hivemind.compression import (
    CompressionInfo,
    NoCompression,
    deserialize_torch_tensor,
    serialization,
    serialize_torch_tensor,
)
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.streaming import split_for_streaming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, as_json, mutated, odd, protobuf, with_a_change
from state_donor import DONOR, download_from
from test_progress import PEERS, record, tracker

from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging import codec, donors
from dalle_lib.swarm.averaging.all_reduce import pack_weights, unpack_weights
from dalle_lib.swarm.averaging.audit import Auditor, Evidence
from dalle_lib.swarm.averaging.complaints import MAX_TEXT, Pace
from dalle_lib.swarm.averaging.donors import ExpectedState
from dalle_lib.swarm.averaging.trust import Trust, owner_key
from dalle_lib.swarm.peer import greeter

__all__ = ["tracker"]
VALUES = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
KINDS = runtime_pb2.UNIFORM_8BIT, runtime_pb2.FLOAT16, runtime_pb2.NONE


@pytest.fixture(scope="module", autouse=True)
def _tensors_are_read_as_in_a_peer():
    with patch.dict(serialization._BASE_COMPRESSION_TYPES):
        codec.install()
        yield


with patch.dict(serialization._BASE_COMPRESSION_TYPES):
    codec.install()
    SENT = [serialize_torch_tensor(values, kind) for values in (VALUES, VALUES[:0]) for kind in KINDS]
    SENT += [codec.FourBits().compress(values, CompressionInfo.from_tensor(values)) for values in (VALUES, VALUES[:0])]
    SENT += [serialize_torch_tensor(values) for values in (VALUES.bfloat16(), torch.arange(9), VALUES[0, 0, 0])]

sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 24, 2**16, 2**31, 2**32 - 1]), max_size=10)


def require_tensor(message: runtime_pb2.Tensor) -> None:
    """Require that a message is refused, or holds a tensor that is as large as its bytes can be."""
    tensor = answer_of(deserialize_torch_tensor, message)
    if tensor is not REFUSED:
        assert tensor.numel() <= max(1, 2 * len(message.buffer))
        assert tensor.isfinite().all()
        assert not tensor.requires_grad


@given(protobuf(*SENT))
def test_codecs(message):
    require_tensor(message)


@given(st.sampled_from(SENT), sizes, st.none() | st.sampled_from(["bfloat16", "float64", "int64", "uint8", "bool", ""]))
def test_codecs_by_odd_shapes_and_dtypes(real, size, dtype):
    message = runtime_pb2.Tensor(buffer=real.buffer, size=size, compression=real.compression, dtype=dtype or real.dtype)
    require_tensor(message)


@given(mutated(pack_weights(torch.tensor([1.0, 0.0, 2.5]))))
def test_unpack_weights(packed):
    weights = answer_of(unpack_weights, packed, 3)
    assert weights is REFUSED or (weights.isfinite().all() and weights.shape == (3,))


EXPECTED = ExpectedState((((2, 3, 4), torch.float32), ((9,), torch.int64)), min_epoch=5, max_epoch=100)
STATE = {"epoch": 7, "group_bits": None, "optimizer_metadata": []}
STREAM = [
    averaging_pb2.DownloadData(metadata=wire.dumps(STATE), tensor_part=part)
    for tensor in (VALUES, torch.arange(9))
    for part in split_for_streaming(serialize_torch_tensor(tensor), 64)
]


@given(with_a_change(STATE), st.sampled_from([[], [VALUES], [VALUES, torch.arange(9)]]))
def test_the_metadata_of_a_state(metadata, tensors):
    problem = EXPECTED.problem(metadata, tensors)
    assert problem is None or len(problem) < 500
    assert problem is not None or type(metadata["epoch"]) is int


@st.composite
def with_a_changed_message(draw: st.DrawFn) -> list[averaging_pb2.DownloadData]:
    place = draw(st.integers(0, len(STREAM) - 1))
    return [*STREAM[:place], draw(protobuf(*STREAM)), *STREAM[place + 1 :]]


@given(st.lists(protobuf(*STREAM), max_size=6) | with_a_changed_message())
def test_donors_download(messages):
    async def sent():
        for message in messages:
            yield message

    found, told = download_from(sent(), EXPECTED, timeout_s=5.0)
    assert (found is None) == bool(told)


@given(with_a_change({"a": 1, "b": 2}), odd)
def test_offers_of_states(offers, epoch):
    async def get(*_, **__):
        return ValueWithExpiration(offers, 0.0)

    offers = {DONOR: ValueWithExpiration(epoch, 0.0), **offers} if isinstance(offers, dict) else offers
    averager = SimpleNamespace(
        dht=SimpleNamespace(get=get), prefix="run", peer_id=PeerID(b"own"), trust=Trust(), gave_no_state={}
    )
    assert len(asyncio.run(donors._candidates(averager, EXPECTED))) <= 1


QUESTION = averaging_pb2.AveragingData(group_id=b"round", tensor_part=runtime_pb2.Tensor(size=[1, 0]))
shaped = sizes.map(lambda size: averaging_pb2.AveragingData(group_id=b"round", tensor_part={"size": size}))


@given(protobuf(QUESTION) | shaped)
def test_audit_answer(question):
    auditor = Auditor(Trust(audits=1.0))
    auditor.evidence = Evidence(
        group_id=b"round", peers=(PeerID(b"a"), PeerID(b"b")), own=0, weight=2.0, sent=[[], SENT[:1]],
        left_out_from={1: 3}, own_parts=[VALUES], codec=NoCompression(), infos=[CompressionInfo.from_tensor(VALUES)],
    )  # fmt: skip
    assert auditor.answer(question, PeerID(b"c")).code == averaging_pb2.BAD_GROUP_ID
    answer = auditor.answer(question, PeerID(b"b"))
    assert answer.ByteSize() < 2000
    assert (answer.code == averaging_pb2.PART_FOR_AVERAGING) == bool(answer.tensor_part.buffer)


REAL = record(10, peer=1).dict()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(with_a_change(REAL) | st.just(REAL), max_size=4))
def test_progress(tracker, told):
    marks = [owner_key(peer.public_key) for peer in PEERS[1:]]
    records = {mark: ValueWithExpiration(each, get_dht_time() + 60) for mark, each in zip(marks, told, strict=False)}
    with patch.object(tracker, "_stay_known"):
        found = tracker._parse_swarm_progress_data(records)
    assert 10 <= found.epoch <= 1001
    assert 0 <= found.samples_accumulated <= 100 * len(told) + 1
    assert math.isfinite(found.eta_next_epoch)
    assert all(isinstance(why, str) for why in tracker.doubted.values())


@given(st.lists(odd.map(str) | st.text(st.characters())))
def test_complaints(words):
    pace = Pace()
    for each in words:
        told = pace.paced(each)
        assert len(told) <= MAX_TEXT + 3
        assert told.isprintable()


requests = mutated(b'{"ports": [31337, 80]}', b'{"time": 1795454798.5, "reached": 31337}', b"[" * 900) | with_a_change(
    {"ports": [31337, 80], "time": 1e9, "reached": 80}
).map(as_json)


@given(requests)
def test_greeter_dial_back(metadata):
    tried = []

    async def first_that_accepts(_address: str | None, ports: list[int]) -> int:
        tried.extend(ports)
        return 0

    async def ask() -> ExpertResponse:
        asked = greeter.Greeter(Mock(spec=P2P))
        asked._address_of, asked._first_that_accepts = lambda _: asyncio.sleep(0), first_that_accepts
        return await asked.rpc_dial_back(ExpertRequest(metadata=metadata), SimpleNamespace(remote_id=None))

    answer_of(lambda: asyncio.run(ask()))
    assert all(type(port) is int and 0 < port < 2**16 for port in tried)
    assert len(tried) <= greeter.MAX_PORTS


@given(requests)
def test_greeter_answers(metadata):
    async def rpc_dial_back(_request: ExpertRequest, timeout: float) -> ExpertResponse:
        return ExpertResponse(metadata=metadata)

    with patch.object(greeter.Greeter, "get_stub", lambda *_: SimpleNamespace(rpc_dial_back=rpc_dial_back)):
        answer = answer_of(lambda: asyncio.run(greeter.dial_back(Mock(spec=P2P), PeerID(b"a"), [31337, 80])))
    assert answer is REFUSED or (answer["reached"] in (None, 0, 31337, 80) and math.isfinite(answer["ahead"]))


@given(st.lists(requests | mutated(b"{}\n", b'{"refused": "no"}\n', b'{"bytes": 9, "seconds": 0.5}\n'), max_size=3))
def test_greeter_lines(lines):
    async def ask() -> dict:
        reader = asyncio.StreamReader(limit=200)
        reader.feed_data(b"\n".join(lines))
        reader.feed_eof()
        return await greeter._read_line(reader)

    with contextlib.suppress(greeter.NotMeasured):
        assert isinstance(asyncio.run(ask()), dict)
