"""What a peer has given: signed by its key, confirmed by a monitor, and refused where a letter of it was changed."""

import json
import re
import sys
from dataclasses import asdict, replace

import pytest
from peer_files import STARTED, peer_with

from dalle_lib.auth.keys import PeerKey
from dalle_lib.cli import main
from dalle_lib.dashboard.contributions import contributions
from dalle_lib.dashboard.summary import summarize, summary_text
from dalle_lib.files import BrokenFile
from dalle_lib.monitor.confirming import CHECKER, confirm, confirmations
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.run.newest import CONFIRMED
from dalle_lib.swarm import Crew
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.receipt import Receipt, confirmations_in, receipt_of


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
    assert str(replace(receipt, seconds=252.0)).endswith("(2): 80 samples, 4 min.")
    receipt.save(tmp_path / "r.json")
    again = Receipt.load(tmp_path / "r.json")
    assert again == receipt
    again.check()


def test_the_summary_and_the_chart_count_the_rounds_of_the_receipt(peer, tmp_path):
    crew, receipt = Crew(tmp_path, "run", {"ada": peer}), receipt_of(peer)
    summary = summarize(crew, peer, None, None)
    assert summary["share_of_gradients"] == {"ada": receipt.share, "bob": 0.5}
    assert list(summary["share_of_gradients_by_epoch"]) == [receipt.first_epoch, receipt.last_epoch]
    assert "ada: 100% of the samples, 50% of the gradients" in summary_text(summary, tmp_path)
    told = "Rounds with others in which your peer counted: 2. Mean shares of them: ada 50%, bob 50%."
    assert told in contributions(peer, crew).data


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


def test_a_monitor_confirms_what_it_has_credited_and_nobody_else_can(peer, mini, key, tmp_path, monkeypatch, capsys):
    monitor, eve = (PeerKey.load_or_create(tmp_path / name / IDENTITY) for name in ("monitor", "eve"))
    database = MonitorDatabase(tmp_path / "monitor.sqlite")
    counted = [(1, key.peer_id, 9.0), (2, "bob", 99.0), (3, key.peer_id, 3.0), (3, "bob", 9.0), (9, "bob", 1000.0),
               (3, "anonymous-12", 9.0)]  # fmt: skip
    for hour, who, weight in counted:
        database.insert("credits", hour=hour, user=who, peer=who, samples=8, compute_s=60, present_s=1, counted=weight)
        database.insert(
            "starts", peer=who, started=hour, user=f"{who} of </script>", last_seen=hour, origin_epoch=hour,
            run_epoch=7,
        )  # fmt: skip
    card = mini.with_changes(monitors=(monitor.peer_id,))
    confirm(tmp_path, card, database, monitor)
    written = json.loads((tmp_path / CONFIRMED).read_text())
    told = {each.peer_id: each for each in confirmations_in(written)}
    assert told.keys() == {"bob", key.peer_id}, "nobody anonymous"
    own = told[key.peer_id]
    assert (own.share, own.samples, own.compute_s) == (round(12 / (9 + 99 + 3 + 9 + 9), 6), 16, 120)
    assert (own.first_epoch, own.last_epoch) == (1, 7)
    confirm(tmp_path, card, database, monitor)
    assert json.loads((tmp_path / CONFIRMED).read_text()) == written, "what has not changed is not signed anew"

    receipt = replace(receipt_of(peer), confirmation=own)
    receipt.check([monitor.peer_id])
    receipt.save(tmp_path / "r.json")
    assert Receipt.load(tmp_path / "r.json") == receipt
    (unsigned,) = (each for each in confirmations(card, database) if each.peer_id == key.peer_id)
    others = [replace(own, share=0.9), unsigned.signed(eve), told["bob"], replace(unsigned, run="x").signed(monitor)]
    for other in others:
        with pytest.raises(ValueError, match="the receipt cannot be checked"):
            replace(receipt, confirmation=other).check([monitor.peer_id])
    database.close()

    run = card.save(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["x", "receipt", "--check", str(tmp_path / "r.json"), "--run", str(run)])
    main()
    assert "Confirmed by the run's monitor: 9.3% of all that was averaged in epochs 1 to 7" in capsys.readouterr().out
    page = (tmp_path / CHECKER).read_text()
    assert f'"monitors": ["{monitor.peer_id}"]' in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=|url\(|fetch\(|import\(", page), "it loads nothing"


def test_a_summary_says_how_a_receipt_is_checked_where_it_is_read(tmp_path):
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "ada.json").touch()
    summary = {"epochs": 1, "seconds": 2, "share_of_samples": {}, "share_of_gradients": {}}
    ending = f" receipt --check {tmp_path / 'receipts' / 'ada.json'}"
    assert summary_text(summary, tmp_path).endswith(f"Anybody can check one: dalle-lib{ending}")
    told = summary_text(summary, tmp_path, ".venv/bin/dalle-lib")
    assert told.endswith(f"Anybody can check one: .venv/bin/dalle-lib{ending}")
