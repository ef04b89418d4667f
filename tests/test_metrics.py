"""What the hash table accepts of the metrics that peers post."""

from dataclasses import asdict

import pytest
from hivemind.dht.node import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.status import PeerStatus

STATUS = PeerStatus(peer_id="12D3", name="ada", epoch=5, samples=96, samples_per_s=2.0, loss=1.5)
POSTED = {**asdict(STATUS), "is_leaving": False, "reported_at": 1_700_000_000}


def is_accepted(record: dict) -> bool:
    board = MetricsBoard("run")
    schema, _ = board.validators
    key = DHTID.generate(source="run_peers").to_bytes()
    subkey = MSGPackSerializer.dumps(b"[owner:public key]")
    return schema.validate(DHTRecord(key, subkey, MSGPackSerializer.dumps(record), 0.0))


def test_what_a_peer_posts_is_accepted():
    assert is_accepted(POSTED)
    assert is_accepted({**POSTED, "loss": None, "is_leaving": True})


@pytest.mark.parametrize(
    "wrong",
    [
        {"peer_id": "x" * 129},
        {"peer_id": b"12D3"},
        {"name": "x" * 65},
        {"epoch": -1},
        {"epoch": 5.0},
        {"samples": -1},
        {"samples": "96"},
        {"samples_per_s": -0.1},
        {"samples_per_s": 2},
        {"loss": "1.5"},
        {"is_leaving": 0},
        {"reported_at": 1.7e9},
        {"extra": 1},
    ],
    ids=str,
)
def test_what_no_peer_posts_is_refused(wrong):
    assert not is_accepted({**POSTED, **wrong})


@pytest.mark.parametrize("missing", POSTED)
def test_a_record_without_one_of_its_fields_is_refused(missing):
    assert not is_accepted({name: value for name, value in POSTED.items() if name != missing})
