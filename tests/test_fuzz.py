"""What strangers send is decoded or refused, whatever it is: each decoder of bytes and records, on changed real ones.

`make test` tries each some hundred times, always alike; `make chaos-long` tries more, and others each time.
"""

import math
import time
from dataclasses import replace

import msgpack
import pytest
from auth_peers import AUTHORITY, RUN, identity, issued
from hivemind.dht import DHTID
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, mutated, with_a_change
from statuses import peer_status

from dalle_lib.auth import TokenValidator, token_key
from dalle_lib.run import RunCard
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.introductions import Introduction, read, signed
from dalle_lib.swarm.averaging.trust import owner_key
from dalle_lib.swarm.peer.membership import records_of
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.status import PeerStatus
from dalle_lib.swarm.records import is_an_averagers, is_own, writer_of

ADA, EVE = identity("ada"), identity("eve")
ADAS_ID, EVES_ID = (PeerID.from_base58(peer.peer_id) for peer in (ADA, EVE))
MARK = owner_key(ADA.public_key)
TOKEN = issued(ADA)
CARD = RunCard.load("emoji-mini")
NOW = time.time()
ROUNDS = f"{CARD.key}_grad_averager"


def packed(value) -> bytes:
    """Return a message of any value, as a program of a stranger's own packs it; nonsense for what has no form."""
    try:
        return msgpack.packb(value, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):
        return b"\xc1"


def dictionary(*entries: tuple) -> bytes:
    """Return a dictionary of the hash table with these entries: subkey, value, when it expires."""
    return packed(msgpack.ExtType(wire.DICTIONARY, packed([None, NOW + 50, [list(entry) for entry in entries]])))


PROGRESS = LocalTrainingProgress(
    peer_id=ADAS_ID.to_bytes(), epoch=5, samples_accumulated=96, samples_per_second=7.0, time=NOW, client_mode=False
).dict()
STATUS = peer_status(ADA.peer_id, "ada", epoch=5, samples=96, samples_per_s=2.0, loss=1.5)
POSTED = {**vars(STATUS), "is_leaving": False, "reported_at": 1_700_000_000}
TOLD = signed(Introduction(7, True, TOKEN.to_bytes(), False), ROUNDS, ADA)
GATHERED = wire.dumps([None, 0, wire.dumps(TOLD)])
MESSAGES = [
    wire.dumps(PROGRESS),
    wire.dumps(POSTED),
    GATHERED,
    wire.dumps({"epoch": 7, "group_bits": "0101", "nested": ((1, 2.5), ())}),
    dictionary((MARK, wire.dumps(PROGRESS), NOW + 50), ("ada", b"\x01", NOW + 9)),
]


@given(mutated(*MESSAGES))
def test_wire_loads(message):
    value = answer_of(wire.loads, message)
    if isinstance(value, DictionaryDHTValue):
        assert math.isfinite(value.latest_expiration_time) or not value.data


@given(with_a_change([PROGRESS, [1, [2, ["x"]]], {"a": {"b": 2.5}}]).map(packed))
def test_wire_loads_of_odd_values(message):
    answer_of(wire.loads, message)


@given(with_a_change([None, 50.5, [["ada", b"x", 50.5], [b"bob", b"y", 50.5]]]))
def test_wire_loads_of_odd_dictionaries(parts):
    answer_of(wire.loads, packed(msgpack.ExtType(wire.DICTIONARY, packed(parts))))


@given(mutated(GATHERED, TOLD[0], TOLD[1], wire.dumps(TOLD)))
def test_introductions_read(gathered):
    assert isinstance(answer_of(read, gathered, ADAS_ID, ROUNDS), Introduction | type(REFUSED))


@given(with_a_change([ROUNDS, NOW, 7, True, b"token", False]), with_a_change(list(TOLD)))
def test_introductions_read_what_the_peer_itself_has_signed(told, parts):
    message = packed(told)
    for each in [message, ADA.public_key, ADA.private_key.sign(message)], parts:
        answer_of(read, packed([None, 0, packed(each)]), ADAS_ID, ROUNDS)


@given(mutated(MARK, owner_key(EVE.public_key)))
def test_writer_of_a_mark(mark):
    answer_of(writer_of, mark)


BOARD = MetricsBoard(CARD.key, ADA.private_key)
MEMBERS = CARD.with_changes(members={"authority": AUTHORITY.public_key})
GUARDS = TokenValidator(AUTHORITY.public_key, RUN, MEMBERS.key)
VALIDATOR = CompositeValidator([*BOARD.validators, records_of(MEMBERS), GUARDS])
PLACES = [f"{MEMBERS.key}_progress", f"{CARD.key}_peers", f"{MEMBERS.key}_grad_averager.0b", "another key"]
KEYS = [DHTID.generate(source=key).to_bytes() for key in (*PLACES, token_key(MEMBERS.key, ADA.peer_id))]


def record(place: int, subkey: bytes, value: bytes, expires: float = NOW + 50) -> DHTRecord:
    return DHTRecord(KEYS[place], subkey, value, expires)


def ready(made: DHTRecord) -> DHTRecord:
    """Return a record as its writer stores it: signed."""
    return DHTRecord(made.key, made.subkey, VALIDATOR.sign_value(made), made.expiration_time)


REAL = [
    ready(record(0, wire.dumps(MARK), wire.dumps(PROGRESS))),
    ready(record(1, wire.dumps(MARK), wire.dumps(POSTED))),
    ready(record(2, wire.dumps(MARK), wire.dumps(True))),
    record(4, wire.dumps(ADA.peer_id), wire.dumps(TOKEN.to_bytes()), TOKEN.expires.timestamp()),
]


def is_admitted(made: DHTRecord) -> bool:
    """Return whether a peer stores a record. hivemind tells whoever asks of any error."""
    try:
        return VALIDATOR.validate(made)
    except ValueError:
        return False


def test_real_records_are_admitted():
    assert [is_admitted(each) for each in REAL] == [True] * 4


@given(
    st.sampled_from(range(len(KEYS))),
    mutated(*(each.subkey for each in REAL), DHTProtocol.IS_REGULAR_VALUE, b""),
    mutated(*(each.value for each in REAL)),
    st.sampled_from([each.expiration_time for each in REAL]) | st.floats(),
)
def test_validators_of_the_hash_table(place, subkey, value, expires):
    made = record(place, subkey, value, expires)
    if is_admitted(made):
        assert len(value) <= 8192
        assert math.isfinite(expires)
    for rule in is_own, is_an_averagers:
        assert rule(made) in (True, False)


@given(with_a_change(PROGRESS), with_a_change(POSTED))
def test_validators_of_the_hash_table_on_what_a_peer_itself_has_signed(progress, posted):
    for place, told in enumerate((progress, posted)):
        if is_admitted(ready(record(place, wire.dumps(MARK), packed(told)))) and place:
            assert PeerStatus(**{name: told[name] for name in vars(STATUS) if name in told}).name.isprintable()


def test_what_a_record_does_not_need_is_not_kept_with_it():
    """hivemind cut it out before others looked at a record, and kept it: one long record hides those of all peers."""
    for made in REAL[2:]:
        for more in b"[signature:eA==]", b"[signature:" + b"A" * 2**20 + b"]":
            assert not is_admitted(replace(made, value=made.value + more))
    for longer in {"peer_id": bytes(10**5)}, {"peer_id": bytes(3000)}:
        assert not is_admitted(ready(record(0, wire.dumps(MARK), wire.dumps({**PROGRESS, **longer}))))


@pytest.mark.parametrize("sign", [b"[owner:", b"[signature:", MARK, b"["])
def test_what_is_long_is_refused_before_hivemind_looks_for_signatures_in_it(sign, monkeypatch):
    """Its regular expressions take hours for 4 MiB, in which nobody's hash table answers."""
    seen = []
    for name in "validate", "strip_value":
        stock = getattr(RSASignatureValidator, name)
        monkeypatch.setattr(
            RSASignatureValidator, name, lambda self, told, stock=stock: seen.append(told) or stock(self, told)
        )
    assert all(map(is_admitted, REAL))
    assert seen
    seen.clear()
    long = sign * (2**22 // len(sign))
    for place in range(len(KEYS)):
        for subkey in wire.dumps(MARK), wire.dumps(ADAS_ID.to_bytes()):
            for made in record(place, subkey, b"\x01" + long), record(place, long, b"\x01"):
                assert not is_admitted(made)
    assert not seen
