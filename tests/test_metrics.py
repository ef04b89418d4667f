"""What the hash table accepts of the metrics that peers post."""

import threading
import time
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import hivemind
import numpy as np
import pytest
from auth_peers import identity
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey
from signed_records import signed
from statuses import peer_status
from waiting import wait_until

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer import bootstrap
from dalle_lib.swarm.peer.metrics import COMPLETE_EXPIRES_S, EXPIRES_S, MetricsBoard
from dalle_lib.swarm.process.drift import MAX_SKETCH, SIZE, Sketch
from dalle_lib.swarm.process.signed import SignedLook
from dalle_lib.swarm.process.status import PeerStatus, SwarmStatus
from dalle_lib.swarm.records import MAX_RECORD_BYTES
from dalle_lib.swarm.searches import Search, traverse

ADA = Identity(RSAPrivateKey())
STATUS = peer_status(ADA.peer_id, "ada", epoch=5, samples=96, samples_per_s=2.0, loss=1.5)
POSTED = {**asdict(STATUS), "is_leaving": False, "reported_at": 1_700_000_000}


@pytest.fixture
def own_searches(monkeypatch):
    """Searches of the hash table as peers make them, who have installed `hash_table`."""
    monkeypatch.setattr(hivemind.dht.node, "_SearchState", Search)
    monkeypatch.setattr(hivemind.dht.node, "traverse_dht", traverse)


def is_accepted(record: dict) -> bool:
    board = MetricsBoard("run")
    schema, *_ = board.validators
    key = DHTID.generate(source="run_peers").to_bytes()
    subkey = MSGPackSerializer.dumps(b"[owner:public key]")
    return schema.validate(DHTRecord(key, subkey, MSGPackSerializer.dumps(record), 0.0))


def test_what_a_peer_posts_is_accepted():
    assert is_accepted(POSTED)
    assert is_accepted({**POSTED, "loss": None, "is_leaving": True})
    assert is_accepted({**POSTED, "name": "김 아다", "team": "★"})


def test_what_holds_a_peer_is_a_word_that_versions_before_need_not_tell_and_may_be_one_of_a_later_version():
    before = {name: told for name, told in POSTED.items() if name != "held"}
    assert is_accepted(before)
    assert is_accepted({**before, "held": "schedule"})
    assert is_accepted({**before, "held": "moonlight"})
    for wrong in "x" * 17, "\x1b[2J", 1, None:
        assert not is_accepted({**before, "held": wrong})


def test_what_a_later_version_adds_is_accepted_by_name_and_passed_over(mini):
    later = {"mood": "sunny", "numbers": [1.5, 2]}
    assert is_accepted({**POSTED, "more": later})
    board, now = MetricsBoard(mini.key), time.time()
    before, record = (DHTRecord(*signed(mini.key, "ada", now, **told)) for told in ({}, {"more": later}))
    board.check(record)
    assert board.told_by([record], now, 60) == board.told_by([before], now, 60)
    assert [peer.name for peer in board.told_by([record], now, 60)[0]] == ["ada"]
    for wrong in "sunny", [1], None:
        assert not is_accepted({**POSTED, "more": wrong})


def test_a_sketch_is_a_short_line_that_versions_before_need_not_tell():
    before = {name: told for name, told in POSTED.items() if name != "sketch"}
    assert is_accepted(before)
    assert is_accepted({**before, "sketch": str(Sketch(5, np.linspace(-3e7, 3e7, SIZE)))})
    assert is_accepted({**before, "sketch": "of a later version"})
    for wrong in "x" * (MAX_SKETCH + 1), "\x1b[2J", 1, None:
        assert not is_accepted({**before, "sketch": wrong})


@pytest.mark.parametrize(("bits", "letter"), [(2048, "🙂"), (4096, "x")])
def test_the_longest_record_of_a_peer_has_room_in_the_hash_table(bits, letter):
    told = dict(POSTED)
    for each in fields(STATUS):
        if "le" in each.metadata:
            told[each.name] = each.metadata["le"]
        elif each.name in ("name", "team"):
            told[each.name] = letter * each.metadata["max_length"]
        elif each.type is str and each.name != "peer_id":
            told[each.name] = "x" * each.metadata["max_length"]
    key = RSAPrivateKey()
    key._private_key = rsa.generate_private_key(65537, bits)
    signatures = RSASignatureValidator(key)
    record = DHTRecord(bytes(20), signatures.local_public_key, MSGPackSerializer.dumps(told), 2e9)
    value = signatures.sign_value(record)
    assert len(record.value) + bits // 8 * 4 / 3 < len(value) <= MAX_RECORD_BYTES


@pytest.mark.parametrize(
    "wrong",
    [
        {"peer_id": "x" * 129},
        {"peer_id": b"12D3"},
        {"name": "x" * 65},
        {"name": "ada\x1b[2J"},
        {"peer_id": "12D3\r"},
        {"name": " "},
        {"name": "a/b"},
        {"name": "\u3164"},
        {"name": "\u2800 \uffa0\u0301"},
        {"epoch": 2**63},
        {"samples_per_s": float("inf")},
        {"loss": float("nan")},
        {"epoch": -1},
        {"epoch": 5.0},
        {"samples": -1},
        {"samples": "96"},
        {"samples_per_s": -0.1},
        {"samples_per_s": 2},
        {"loss": "1.5"},
        {"is_leaving": 0},
        {"reported_at": 1.7e9},
        {"hardware": "T4\x1b[2J"},
        {"kit": "x" * 33},
        {"team": "x" * 41},
        {"team": "\u115f\u1160"},
        {"witnessed": "x" * 161},
        {"anonymous": 1},
        {"trained": "5 96 16 1.5\n"},
        {"started_at": -1.0},
        {"compute_s": float("nan")},
        {"counted": -1.0},
        {"sent_bytes": -1},
        {"received_bytes": 1.5},
        {"received_bytes": 10**19},
        {"extra": 1},
    ],
    ids=str,
)
def test_what_no_peer_posts_is_refused(wrong):
    assert not is_accepted({**POSTED, **wrong})


@pytest.mark.parametrize("missing", [name for name in POSTED if name not in ("held", "sketch")])
def test_a_record_without_one_of_its_fields_is_refused(missing):
    assert not is_accepted({name: value for name, value in POSTED.items() if name != missing})


@pytest.mark.usefixtures("own_searches")
def test_who_left_with_the_last_epoch_is_remembered_and_other_peers_do_not_make_a_run_complete():
    board = MetricsBoard("run", ADA.private_key)
    dht = hivemind.DHT(start=True, record_validators=board.validators, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    try:
        board.post(dht, replace(STATUS, epoch=60, held="schedule"))
        wait_until(lambda: [peer.held for peer in board.read(dht)] == ["schedule"])
        board.post(dht, replace(STATUS, epoch=60))
        wait_until(lambda: [peer.held for peer in board.read(dht)] == [""])
        (kept,) = board.signed(dht)
        MetricsBoard("run").check(kept)
        with pytest.raises(ValueError, match="not what its peer has signed"):
            board.check(replace(kept, value=kept.value.replace(b"Tesla", b"Tesle")))
        assert not board.said_complete(dht, 60), "it is still there, so newcomers take over its state"
        board.post(dht, replace(STATUS, epoch=60), is_leaving=True, expires_s=COMPLETE_EXPIRES_S)
        wait_until(lambda: not board.read(dht))
        assert board.said_complete(dht, 60)
        assert not board.said_complete(dht, 61)
    finally:
        dht.shutdown()


@pytest.mark.usefixtures("own_searches")
def test_a_record_that_would_never_go_away_or_tells_of_another_is_not_believed():
    board = MetricsBoard("run", ADA.private_key)
    dht = hivemind.DHT(start=True, record_validators=board.validators, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    try:
        board.post(dht, STATUS, expires_s=10 * EXPIRES_S)
        wait_until(lambda: dht.get("run_peers", latest=True))
        assert board.read(dht) == []
        board.post(dht, replace(STATUS, peer_id="12D3", name="bob"), is_leaving=True, expires_s=11 * EXPIRES_S)
        told = lambda: {entry.value["name"] for entry in dht.get("run_peers", latest=True).value.values()}  # noqa: E731
        wait_until(lambda: told() == {"bob"})
        assert not board.said_complete(dht, 1)
    finally:
        dht.shutdown()


def test_a_look_that_fails_is_not_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap, "STATUS_EVERY_S", 0.0)
    stop, looks = threading.Event(), []

    class Board(MetricsBoard):
        def signed(self, dht: hivemind.DHT) -> list[DHTRecord]:
            return []

        def told_by(self, records, now: float, total_epochs: int) -> tuple[list[PeerStatus], bool]:
            looks.append(total_epochs)
            if len(looks) == 1:
                raise TimeoutError
            if len(looks) == 2:
                (tmp_path / "status.json").mkdir()  # no status can be written
            else:
                (tmp_path / "status.json").rmdir()
                stop.set()
            return [STATUS], False

    board = Board("run", ADA.private_key)
    bootstrap._report(hivemind.DHT(start=False), board, RunCard.load("emoji-mini"), tmp_path, stop, None)
    assert len(looks) == 3
    assert SwarmStatus.read(tmp_path).peers == [STATUS]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_peers_have_signed_is_kept_if_it_is_asked_for_without_who_is_anonymous(tmp_path, monkeypatch, is_kept):
    monkeypatch.setattr(bootstrap, "STATUS_EVERY_S", 0.0)
    card, at = RunCard.load("emoji-mini"), time.time()
    signatures = {name: signed(card.key, name, at, anonymous=name == "cleo") for name in ("ada", "bob", "cleo")}
    stop = threading.Event()

    class Board(MetricsBoard):
        def signed(self, dht: hivemind.DHT) -> list[DHTRecord]:
            stop.set()
            return [DHTRecord(*each) for each in signatures.values()]

    board = Board(card.key, ADA.private_key)
    bootstrap._report(hivemind.DHT(start=False), board, card, tmp_path, stop, None, is_kept)
    assert {peer.name for peer in SwarmStatus.read(tmp_path).peers} == {"ada", "bob", "cleo"}
    kept = SignedLook.read(tmp_path)
    if is_kept:
        assert kept.records == {identity(name).peer_id: signatures[name] for name in ("ada", "bob")}
        assert kept.time == SwarmStatus.read(tmp_path).time
    else:
        assert kept is None


def test_where_a_run_has_members_nothing_is_told_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap, "STATUS_EVERY_S", 0.0)
    stop = threading.Event()

    class Board(MetricsBoard):
        def signed(self, dht: hivemind.DHT) -> list[DHTRecord]:
            return []

        def told_by(self, records, now: float, total_epochs: int) -> tuple[list[PeerStatus], bool]:
            stop.set()
            return [STATUS, replace(STATUS, peer_id="stranger")], False

    bootstrap._report(
        hivemind.DHT(start=False), Board("run", ADA.private_key), RunCard.load("emoji-mini"), tmp_path, stop,
        lambda _: {STATUS.peer_id: SimpleNamespace(user="ada")},
    )  # fmt: skip
    told = SwarmStatus.read(tmp_path)
    assert (told.peers, told.users, told.not_shown) == ([STATUS], {STATUS.peer_id: "ada"}, 1)
