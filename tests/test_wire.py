"""Bytes of other peers: what is decoded, what is refused, and that nothing crashes."""

import asyncio
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P
from hivemind.utils import MSGPackSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

import dalle_lib
from dalle_lib.swarm import wire

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def depth(value) -> int:
    """Return how many containers are within each other on the wire, where a tuple is an extension that holds a list."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    inside = max(map(depth, value), default=0) if isinstance(value, list | tuple) else 0
    return inside + {list: 1, tuple: 2}.get(type(value), 0)


@given(plain)
def test_what_peers_pack_comes_back(value):
    if depth(value) <= wire.MAX_DEPTH:
        assert wire.loads(wire.dumps(value)) == value


@settings(max_examples=500)
@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_as_msgpack_does_or_refused(message):
    try:
        value = wire.loads(message)
    except ValueError:
        return
    assert value == MSGPackSerializer.loads(message) or value != value


@settings(max_examples=300)
@given(plain, st.randoms(use_true_random=False))
def test_changed_messages_are_decoded_or_refused(value, rng):
    message = bytearray(wire.dumps(value))
    for _ in range(rng.randint(1, 4)):
        message[rng.randrange(len(message))] = rng.randrange(256)
    try:
        wire.loads(bytes(message))
    except ValueError:
        return


def nested(levels: int, code: int = wire.TUPLE) -> bytes:
    message = b"\x90"
    for _ in range(levels):
        message = msgpack.packb([msgpack.ExtType(code, message)])
    return message


def dictionary(*entry, size=None, expires=0.0) -> bytes:
    return msgpack.packb(msgpack.ExtType(wire.DICTIONARY, msgpack.packb([size, expires, [entry]])))


NO_ENTRIES = [
    (1, b"", 2.0),
    ([], b"", 2.0),
    ("a", "b", 2.0),
    ("a", b"", float("nan")),
    ("a", b"", float("inf")),
    ("a", b"", 2),
]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "ends within"),
        (b"\x91", "ends within"),
        (b"\xdd\xff\xff\xff\xff", "ends within"),
        (b"\xdf\xff\xff\xff\xff\x01", "ends within"),
        (b"\xc6\xff\xff\xff\xffx", "ends within"),
        (b"\xc1", "no known type"),
        (b"\x01\x01", "1 bytes after"),
        (b"\xd4\x41\x01", "extension of code 65"),
        (b"\xd6\xff\x00\x00\x00\x00", "extension of code 255"),  # a date
        (b"\xc7\x00\x40", "ends within"),
        (b"\xd5\x40\x01\x01", "1 bytes after"),
        (b"\xc7\x09\x40\x01", "ends within"),
        (b"\x91" * 13 + b"\xc0", "12 containers"),
        (nested(300), "12 containers"),
        (nested(300, wire.DICTIONARY), "12 containers"),
        (msgpack.packb([0] * 20_000), "20,000 values"),
        (bytes(2**20 + 1), "1,048,577 bytes"),
        (b"\xa1\xff", "cannot be read: UnicodeDecodeError"),
        (b"\xd4\x50\x01", "cannot be read: TypeError"),
        *((dictionary(*entry), "expected a key, bytes and a time") for entry in NO_ENTRIES),
        (wire.dumps(DictionaryDHTValue(maxsize=3)).replace(b"\x03", b"\xc0", 1)[:-1] + b"\x91", "ends within"),
        (b"\x81\x01\x01", "cannot be read"),  # a map's keys are texts
    ],
    ids=lambda value: repr(value[:12]),
)
def test_each_kind_of_wrong_message_is_refused_with_its_reason(message, why):
    with pytest.raises(ValueError, match=why):
        wire.loads(message)


def test_a_dictionary_of_the_hash_table_comes_back():
    dictionary = DictionaryDHTValue()
    now = time.time()
    dictionary.store("ada", b"1", now + 60)
    dictionary.store(b"key", wire.dumps({"samples": (1, 2.5)}), now + 90)
    back = wire.loads(wire.dumps(dictionary))
    assert type(back) is DictionaryDHTValue
    assert dict(back.items()) == dict(dictionary.items())
    assert back.latest_expiration_time == dictionary.latest_expiration_time


@pytest.mark.parametrize("size", ["abc", 0, -1, [], float("nan")])
def test_what_a_dictionary_claims_of_itself_is_not_believed(size):
    back = wire.loads(dictionary("a", b"", 7e9, size=size, expires=float("inf")))
    assert back.latest_expiration_time == 7e9
    assert back.maxsize == float("inf")


def received(sent: bytes) -> bytes:
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await wire.receive(reader)

    return asyncio.run(read())


def test_a_message_is_received_whole():
    for message in b"", b"x", bytes(wire.MAX_RECEIVED_BYTES):
        assert received(len(message).to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + message) == message


@pytest.mark.parametrize("length", [wire.MAX_RECEIVED_BYTES + 1, 10**12, 2**64 - 1])
def test_a_stream_ends_before_a_message_that_is_too_long(length):
    with pytest.raises(asyncio.IncompleteReadError) as error:
        received(length.to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + bytes(wire.MAX_RECEIVED_BYTES + 1))
    assert error.value.expected == length
    assert error.value.partial == b""


HASH_TABLE = """
import asyncio, multiprocessing, os, sys
multiprocessing.set_start_method("fork", force=True)
import hivemind
from hivemind.dht.node import DHTID
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2P
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from dalle_lib.swarm import wire

how, nested = sys.argv[1], bytes.fromhex(sys.argv[2])
if how == "installed":
    wire.install()
dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
addresses = [str(address) for address in dht.get_visible_maddrs()]

async def store(subkey):
    p2p = await P2P.create(initial_peers=addresses)
    stub = super(DHTProtocol, DHTProtocol).get_stub(p2p, dht.peer_id)
    record = {"keys": [DHTID.generate("x").to_bytes()], "subkeys": [subkey], "values": [nested], "in_cache": [False]}
    try:
        return str(await stub.rpc_store(dht_pb2.StoreRequest(**record, expiration_time=[get_dht_time() + 60])))
    except Exception as error:
        return str(error)
    finally:
        await p2p.shutdown()

for subkey in DHTProtocol.IS_DICTIONARY, nested:
    if dht.is_alive():
        print(asyncio.run(store(subkey)))
print("alive", dht.is_alive(), flush=True)
dht.kill()
os._exit(0)
"""


@pytest.mark.peers
def test_a_strangers_nested_tuples_end_the_hash_table_of_stock_peers_and_not_ours():
    told = {}
    for how in "installed", "stock":
        command = [sys.executable, "-c", HASH_TABLE, how, nested(300).hex()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        told[how] = done.stdout
    assert told["installed"].count("12 containers") == 2
    assert "alive True" in told["installed"]
    assert "alive False" in told["stock"], "install has become superfluous"


@pytest.mark.parametrize("message", [b"\xdc\xff\xff" * 6_000, b"\xdd\x00\x0f\xff\xff" * 200_000, nested(5_000)])
def test_what_claims_much_is_refused_before_anything_is_made_of_it(message):
    tracemalloc.start()
    with pytest.raises(ValueError, match="containers"):
        wire.loads(message)
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert grown < 100_000


def test_no_other_module_decodes_or_encodes_by_hivemind():
    """What is stored in the hash table is encoded by hivemind itself, which asks the same class for it."""
    files = Path(dalle_lib.__file__).parent.rglob("*.py")
    users = {file.name for file in files if re.search(r"MSGPackSerializer\b(?!\")|import msgpack", file.read_text())}
    assert users == {"wire.py"}
