"""The hash table's searches end whatever others answer, and peers stand at their own places."""

import asyncio
import time
from dataclasses import replace

import pytest
from hivemind.dht import DHTID
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.routing import RoutingTable
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import TimedStorage, ValueWithExpiration, get_dht_time, timed_storage
from hivemind.utils.crypto import RSAPrivateKey, RSAPublicKey

from dalle_lib.swarm import hash_table, searches
from dalle_lib.swarm.searches import Search


def answer(*entries: tuple[str, bytes, float], expires: float = float("inf")) -> ValueWithExpiration:
    """Return what hivemind takes from a peer's answer: a dictionary, and when the peer says that it expires."""
    with DictionaryDHTValue().freeze() as dictionary:
        for entry in entries:
            dictionary.store(*entry)
        return ValueWithExpiration(dictionary, expires)


def found(*answers: ValueWithExpiration, end: bool = True) -> ValueWithExpiration | None:
    """Return what a search for the newest value finds among some answers."""

    async def search():
        state = Search(DHTID.generate("x"), sufficient_expiration_time=float("inf"))
        for each in answers:
            state.add_candidate(each, DHTID.generate("y"))
        if end:
            state.finish_search()
        return await asyncio.wait_for(state.future, 20)

    return asyncio.run(search())


def in_protocol(stored: dict[str, ValueWithExpiration], call):
    """Return what `call` returns of a peer's protocol in whose storage these values lie, by their keys."""

    async def run():
        protocol = hash_table.Protocol(_initialized_with_create=True)
        protocol.node_id = protocol.node_info = None
        protocol.storage, protocol.cache, protocol.record_validator = DHTLocalStorage(), DHTLocalStorage(), None
        protocol.routing_table, protocol.bucket_size = RoutingTable(DHTID(0), 20, 5), 20
        for key, value in stored.items():
            protocol.storage.store(DHTID.generate(key), *value)
        return await call(protocol)

    return asyncio.run(run())


SOON, LATER = time.time() + 86_400, time.time() + 100_000
"""When records expire: long after the last of the tests that pytest has begun with this file."""
GOOD = answer(("ada", b"\x01", SOON), expires=SOON)


def test_an_answer_that_claims_to_last_for_ever_ends_no_search_and_hides_nobody():
    both = found(answer(("eve", b"\x02", LATER)), GOOD)
    assert both == ({"ada": (1, SOON), "eve": (2, LATER)}, LATER)
    assert found(answer(), GOOD) == ({"ada": (1, SOON)}, SOON)
    assert found(answer()) is None


def test_a_search_changes_nothing_that_this_peer_stores():
    storage = DHTLocalStorage()
    storage.store_subkey(DHTID.generate("x"), "ada", b"\x01", SOON)
    both = found(storage.get(DHTID.generate("x")), answer(("eve", b"\x02", LATER)))
    assert both.value.keys() == {"ada", "eve"}
    assert [subkey for subkey, _ in storage.get(DHTID.generate("x")).value.items()] == ["ada"]


@pytest.fixture
def is_installed(monkeypatch):
    monkeypatch.setattr(TimedStorage, "store", hash_table.keep)


def test_a_record_that_is_brought_again_and_again_takes_no_memory(is_installed):
    storage = DictionaryDHTValue()
    for number in range(2000):
        storage.store("eve", b"x", SOON + number % 1000)
        storage.store("ada", b"x", SOON)
    assert len(storage.expiration_heap) < 50
    assert dict(storage.items()) == {"ada": (b"x", SOON), "eve": (b"x", SOON + 999)}


def test_an_older_record_does_not_make_the_newer_one_expire_with_it(is_installed, monkeypatch):
    storage, now = DictionaryDHTValue(), get_dht_time()
    storage.store("ada", b"new", now + 100)
    storage.store("ada", b"old", now + 50)
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: now + 60)
    assert storage.get("ada") == (b"new", now + 100)


def test_a_signature_that_is_found_again_is_not_computed_again(monkeypatch):
    ada, verify, verified = RSASignatureValidator(RSAPrivateKey()), RSAPublicKey.verify, []
    monkeypatch.setattr(RSAPublicKey, "verify", lambda *args: verified.append(args) or verify(*args))
    record = DHTRecord(b"key", ada.local_public_key, b"first", SOON)
    signed = replace(record, value=ada.sign_value(record))
    assert [hash_table.is_signed(each, signed) for each in (ada, ada)] == [True, True]
    assert len(verified) == 1
    changed = [replace(signed, value=b"x" + signed.value), replace(signed, expiration_time=LATER), record]
    assert [hash_table.is_signed(ada, each) for each in changed] == [False, False, False]


def asked_for(*keys: str) -> dht_pb2.FindRequest:
    return dht_pb2.FindRequest(keys=[DHTID.generate(key).to_bytes() for key in keys], peer=dht_pb2.NodeInfo())


def test_one_call_is_answered_with_no_more_than_a_search_asks_for(monkeypatch):
    monkeypatch.setattr(hash_table.Protocol, "rpc_ping", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(DHTID, "from_bytes", classmethod(lambda cls, raw: cls(int.from_bytes(raw, "big"))))
    big = ValueWithExpiration(bytes(hash_table.MAX_FOUND_BYTES), SOON)

    def answers(*keys: str) -> int:
        found = in_protocol({"big": big}, lambda protocol: protocol.rpc_find(asked_for(*keys), None))
        return found.ByteSize()

    assert answers("big") > hash_table.MAX_FOUND_BYTES
    assert answers(*"abcdefghijklmnop") < 1000
    for keys in ["big"] * 2, "abcdefghijklmnopq":
        with pytest.raises(ValueError, match="ask for fewer"):
            answers(*keys)


@pytest.mark.parametrize(("records", "is_copy"), [(1, True), (hash_table.MAX_STORED + 1, False)])
def test_copies_and_too_many_records_at_once_are_not_stored(records, is_copy):
    asked = dht_pb2.StoreRequest(
        keys=[bytes(20)] * records,
        subkeys=[b"\xc0"] * records,
        values=[b"x"] * records,
        expiration_time=[SOON] * records,
        in_cache=[is_copy] * records,
    )

    async def store(protocol: hash_table.Protocol) -> tuple[list[bool], int]:
        told = await protocol.rpc_store(asked, None)
        return list(told.store_ok), len(protocol.storage) + len(protocol.cache)

    assert in_protocol({}, store) == ([False] * records, 0)


@pytest.mark.parametrize("expires", [float("inf"), float("nan"), float("-inf")])
def test_a_value_without_a_time_is_no_answer(expires):
    assert found(ValueWithExpiration(b"\x01", expires), GOOD) == ({"ada": (1, SOON)}, SOON)


def test_what_cannot_be_read_is_left_out():
    told = found(answer(("eve", b"\xc1", LATER), ("mallory", b"", LATER), ("ada", b"\x01", SOON)))
    assert told == ({"ada": (1, SOON)}, LATER)
    assert found(ValueWithExpiration(b"\xc1", SOON)) is None


def test_a_search_that_nobody_ends_ends_by_itself(monkeypatch):
    monkeypatch.setattr(searches, "SEARCH_S", 0.1)
    assert found(GOOD, end=False) == ({"ada": (1, SOON)}, SOON)


def test_a_peer_has_one_place_in_the_hash_table_and_cannot_choose_it():
    async def place() -> list[bool]:
        protocol = hash_table.Protocol(_initialized_with_create=True)
        protocol.node_id, protocol.storage, protocol.num_replicas = DHTID(0), DHTLocalStorage(), 5
        protocol.routing_table = RoutingTable(DHTID(0), 20, 5)
        peer, known = PeerID(bytes.fromhex("1220") + bytes(32)), []
        for claimed in DHTID(7), hash_table.node_id_of(peer):
            await protocol.update_routing_table(claimed, peer)
            known.append(claimed in protocol.routing_table)
        return known

    assert asyncio.run(place()) == [False, True]


def test_answers_name_other_peers_at_their_places_and_no_more_than_there_can_be(monkeypatch):
    own, *others = (PeerID(bytes.fromhex("1220") + bytes([number]) * 32) for number in range(22))
    named = {}

    async def answer(_self, _peer, keys):
        return dict.fromkeys(keys, (None, named))

    async def names(protocol: hash_table.Protocol) -> set[PeerID]:
        protocol.node_id = hash_table.node_id_of(own)
        ((_, nearest),) = (await protocol.call_find(others[0], [DHTID(0)])).values()
        return set(nearest.values())

    monkeypatch.setattr(hash_table.DHTProtocol, "call_find", answer)
    named = {hash_table.node_id_of(peer): peer for peer in (own, *others[:19])}
    assert in_protocol({}, names) == set(others[:19]), "who is named its own name cannot store anything"
    named = {DHTID(7): others[0], hash_table.node_id_of(others[1]): others[1]}
    assert in_protocol({}, names) == {others[1]}
    named = {hash_table.node_id_of(peer): peer for peer in others}
    assert in_protocol({}, names) == set()
