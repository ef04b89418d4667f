"""What a peer has given: signed by its key, and refused where a letter of it was changed."""

import json
import sys
from dataclasses import asdict, replace

import pytest
from peer_files import STARTED, peer_with

from dalle_lib.auth.keys import PeerKey
from dalle_lib.cli import main
from dalle_lib.files import BrokenFile
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.receipt import Receipt, receipt_of


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> PeerKey:
    return PeerKey.load_or_create(tmp_path_factory.mktemp("key") / IDENTITY)


@pytest.fixture
def peer(mini, tmp_path, key, tmp_path_factory):
    """A peer that was in three averages with others, in one of which it did not count, and in one alone."""
    shares = [(4, {key.peer_id: 0.25, "bob": 0.75}), (5, {"bob": 1.0}), (6, {key.peer_id: 1.0}),
              (9, {key.peer_id: 0.75, "bob": 0.25})]  # fmt: skip
    events = [STARTED, {"event": "joined", "peer_id": key.peer_id, "name": "ada", "epoch": 4}]
    events += [
        {"event": "averaged", "epoch": epoch, "shares": each, "counted": each, "error": None} for epoch, each in shares
    ]
    events += [{"event": "left", "epoch": 10, "samples": 80}]
    made = peer_with(tmp_path, events, mini)
    (made.folder / IDENTITY).write_bytes(next(tmp_path_factory.getbasetemp().glob(f"key*/{IDENTITY}")).read_bytes())
    return made


def test_it_says_what_counted_with_others_and_whoever_has_it_can_check_it(peer, key, tmp_path):
    receipt = receipt_of(peer)
    assert (receipt.name, receipt.peer_id, receipt.samples) == ("ada", key.peer_id, 80)
    assert (receipt.first_epoch, receipt.last_epoch, receipt.rounds, receipt.share) == (4, 9, 2, 0.5)
    assert "ada gave 50.0% of the averages of epochs 4 to 9" in str(receipt)
    receipt.save(tmp_path / "r.json")
    again = Receipt.load(tmp_path / "r.json")
    assert again == receipt
    again.check()


@pytest.mark.parametrize(
    "change",
    [{"share": 0.9}, {"name": "eve"}, {"rounds": 3}, {"run": "other"}, {"signature": ""}, {"signature": "AAAA"},
     {"public_key": "AAAA"}, {"peer_id": "QmOther"}],
    ids=str,
)  # fmt: skip
def test_a_changed_receipt_is_refused(peer, change):
    with pytest.raises(ValueError, match="the receipt"):
        replace(receipt_of(peer), **change).check()


def test_another_peers_key_cannot_sign_for_this_one(peer, tmp_path):
    other = PeerKey.load_or_create(tmp_path / "other" / IDENTITY)
    forged = replace(receipt_of(peer), signature="")
    with pytest.raises(ValueError, match="was changed after it was signed, or another key"):
        replace(forged, signature=other.sign(forged.signed_bytes())).check()


@pytest.mark.parametrize(
    "change",
    [{"share": 1.1}, {"share": "1"}, {"rounds": True}, {"rounds": -1}, {"name": "a\x1b[2J"}, {"name": "a/b"},
     {"run": "x" * 100}, {"written": 1e300}, {"public_key": "x" * 5000}, {"seconds": None}],
    ids=str,
)  # fmt: skip
def test_files_that_hold_no_receipt_are_refused(peer, tmp_path, change):
    (tmp_path / "r.json").write_text(json.dumps(asdict(receipt_of(peer)) | change))
    with pytest.raises(BrokenFile, match=r"r\.json"):
        Receipt.load(tmp_path / "r.json")


def test_a_peer_whose_gradients_never_counted_has_none(tmp_path, key):
    peer = peer_with(tmp_path, [STARTED])
    PeerKey.load_or_create(peer.folder / IDENTITY)
    with pytest.raises(ValueError, match="expected a peer whose gradient has counted"):
        receipt_of(peer)


def test_the_command_writes_and_checks_them(peer, tmp_path, monkeypatch, capsys):
    def typed(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["dalle-lib", "receipt", *words])
        main()
        return capsys.readouterr().out

    assert "ada gave 50.0%" in typed("--folder", str(peer.folder), "--out", str(tmp_path / "out"))
    (file,) = (tmp_path / "out").iterdir()
    assert "Signed by the key of peer" in typed("--check", str(file))
    file.write_text(file.read_text().replace('"rounds": 2', '"rounds": 7'))
    with pytest.raises(SystemExit) as ended:
        typed("--check", str(file))
    assert ended.value.code == 2
