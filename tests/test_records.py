"""The records of a run in its hash table are their writer's own, and are what they should be."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import msgpack
import pytest
from hivemind.dht import DHTID
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DHTLocalStorage
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Identity
from dalle_lib.swarm import hash_table, records, wire
from dalle_lib.swarm.records import MAX_CLOCK_S, Rule, RunRecords, is_an_averagers, is_own, writer_of

ADAS, BOBS = (RSASignatureValidator(RSAPrivateKey()) for _ in range(2))
ADA, BOB = ADAS.local_public_key, BOBS.local_public_key
NAMES = "run_peers", "run_averager.0b", "another key"
KEY, AVERAGERS, OTHER_KEY = (DHTID.generate(source=name).to_bytes() for name in NAMES)
PEER = bytes.fromhex("1220") + bytes(32)


def is_accepted(subkey: bytes, in_s: float = 50.0, key: bytes = KEY, value: bytes = b"\x01") -> bool:
    records = RunRecords({"run_peers": Rule(is_own, 60.0), "run_averager.0b": Rule(is_an_averagers, 600.0)})
    return records.validate(DHTRecord(key, subkey, value, time.time() + in_s))


def test_a_mark_names_its_writer():
    identity = Identity(RSAPrivateKey())
    mark = RSASignatureValidator(identity.private_key).local_public_key
    assert writer_of(mark) == identity.peer_id


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        ADA[:-1],
        b"x" + ADA,
        ADA + b"\n",
        ADA + BOB,
        ADA[:-1] + b" ada]",
        ADA[:-5] + b"]",
        b"[owner:ssh-rsa AAAA]",
        b"[owner:ssh-rsa ====]",
        b"[owner:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPrYZ0cV7MVDwtK1HKkKhE6rEWr5Ix4zpHVoPJTSEdRv]",
    ],
)
def test_what_is_not_exactly_a_mark_is_nobodys(mark):
    with pytest.raises(ValueError, match="expected"):
        writer_of(mark)
    assert not is_accepted(wire.dumps(mark))


def test_each_peer_has_one_record_under_a_guarded_key_and_others_pack_its_subkey_alike():
    assert is_accepted(wire.dumps(ADA))
    assert not is_accepted(msgpack.packb(ADA.decode())), "a text"
    assert not is_accepted(b"\xc6" + len(ADA).to_bytes(4, "big") + ADA), "packed longer than others would"
    assert not is_accepted(DHTProtocol.IS_REGULAR_VALUE), "one value in place of everybody's"


def test_what_lies_under_no_key_of_the_run_is_refused():
    for subkey in wire.dumps(ADA), wire.dumps(PEER), DHTProtocol.IS_REGULAR_VALUE:
        assert not is_accepted(subkey, key=OTHER_KEY)


def averagers(value: bytes, subkey: bytes = ADA, signed_by: RSASignatureValidator = ADAS, in_s: float = 50.0) -> bool:
    """Return whether what somebody signs and stores among the averagers of a run is accepted."""
    rules = RunRecords({"run_peers": Rule(is_own, 60.0), "run_averager.0b": Rule(is_an_averagers, 600.0)})
    record = DHTRecord(AVERAGERS, wire.dumps(subkey), value, time.time() + in_s)
    return CompositeValidator([rules, ADAS]).validate(replace(record, value=signed_by.sign_value(record)))


@pytest.mark.parametrize("value", [True, False, None, 0, 2.5, 2**63])
def test_averagers_say_whether_they_look_for_a_group_and_how_gladly_they_give_their_state(value):
    assert averagers(wire.dumps(value))
    assert not averagers(wire.dumps([value]))
    assert not averagers(wire.dumps(value), in_s=660.0)


def test_nobody_writes_for_another_averager_nor_in_place_of_all():
    assert not averagers(wire.dumps(True), signed_by=BOBS)
    assert not averagers(wire.dumps(True), subkey=PEER)
    for subkey in DHTProtocol.IS_REGULAR_VALUE, DHTProtocol.IS_DICTIONARY, wire.dumps(PEER), b"", b"\xc1":
        assert not is_accepted(subkey, key=AVERAGERS)


@pytest.mark.parametrize("value", [b"", b"\xc1", wire.dumps("x"), wire.dumps(True) + b" ", bytes(10**6)])
def test_what_no_averager_says_is_refused(value):
    assert not averagers(value)


def test_a_record_that_is_long_by_its_signature_is_refused():
    record = DHTRecord(KEY, wire.dumps(ADA), wire.dumps(1), time.time() + 50)
    signed = ADAS.sign_value(record)
    long = signed[:-1] + b" " * records.MAX_RECORD_BYTES + b"]"
    assert ADAS.validate(replace(record, value=long)), "hivemind takes it"
    assert is_accepted(record.subkey, value=signed)
    assert not is_accepted(record.subkey, value=long)


def stored_by(caller: str) -> bool:
    """Return whether Ada's record is stored at a peer that somebody asks to."""

    async def ask() -> list[bool]:
        protocol = hash_table.Protocol(_initialized_with_create=True)
        protocol.node_info, protocol.storage = dht_pb2.NodeInfo(), DHTLocalStorage()
        protocol.record_validator = RunRecords({"run_peers": Rule(is_own, 60.0)})
        request = dht_pb2.StoreRequest(
            keys=[KEY],
            subkeys=[wire.dumps(ADA)],
            values=[b"\x01"],
            expiration_time=[time.time() + 50],
            in_cache=[False],
        )
        return list((await protocol.rpc_store(request, SimpleNamespace(remote_id=PeerID.from_base58(caller)))).store_ok)

    return asyncio.run(ask()) == [True]


def test_a_peer_stores_its_own_records_and_nobody_elses():
    assert stored_by(writer_of(ADA))
    assert not stored_by(writer_of(BOB))


@pytest.mark.parametrize("in_s", [float("nan"), float("inf"), float("-inf")])
def test_no_record_stays_for_ever_under_any_key(in_s):
    assert not is_accepted(wire.dumps(ADA), in_s)
    assert not averagers(wire.dumps(True), in_s=in_s)


def test_a_record_stays_no_longer_than_its_key_allows():
    assert is_accepted(wire.dumps(ADA), 60 + MAX_CLOCK_S / 2)
    assert not is_accepted(wire.dumps(ADA), 60 + 2 * MAX_CLOCK_S)
    both = CompositeValidator(
        [RunRecords({"another key": Rule(is_own, 600.0)}), RunRecords({"run_peers": Rule(is_own, 60.0)})]
    )
    assert not both.validate(DHTRecord(OTHER_KEY, wire.dumps(ADA), b"\x01", time.time() + 3600.0))
    assert both.validate(DHTRecord(OTHER_KEY, wire.dumps(ADA), b"\x01", time.time() + 600.0))
    assert both.validate(DHTRecord(KEY, wire.dumps(ADA), b"\x01", time.time() + 60.0))
