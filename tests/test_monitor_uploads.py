"""Checkpoints on the Hub: whatever fails, the newest are there in the end, and old ones go."""

import json
import time
from contextlib import closing

import pytest
import torch
from waiting import wait_until

from dalle_lib.auth.keys import PeerKey
from dalle_lib.checkpoint import save_tensors
from dalle_lib.files import sha256_of
from dalle_lib.hub_http import httpx
from dalle_lib.monitor import steward, uploading
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.contributions import DAY_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import PICTURES, drawings
from dalle_lib.monitor.monitor import Monitor
from dalle_lib.monitor.uploading import Uploader, pointer
from dalle_lib.organizing.editing import edit_run
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run.files import checkpoint_name
from dalle_lib.run.newest import LATEST
from dalle_lib.swarm import Peer
from dalle_lib.swarm.process.folder import IDENTITY

REPOSITORY, TOKEN = "crew/photos-checkpoints", "hf_ada"


@pytest.fixture
def monitored(tmp_path, hub):
    """A monitor's folder, its peer's, and its data base; ada may write to the Hub."""
    hub.users[TOKEN] = User("ada", {"crew": "write"})
    (tmp_path / "status.json").write_text('{"epoch": 1}')
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        yield tmp_path, tmp_path / "monitor", database


def checkpoint(place, database, epoch, age_s=0.0):
    folder = folder_of(place, epoch)
    folder.mkdir(parents=True)
    for name in "model", "optimizer":
        save_tensors(folder / f"{name}.safetensors", {"a": torch.full((9,), float(epoch))}, {"epoch": str(epoch)})
    assert note_new(place, database) == [epoch]
    database.change("UPDATE checkpoints SET made = :at WHERE epoch = :epoch", at=time.time() - age_s, epoch=epoch)


def uploader(folder, place, database, monkeypatch, **options):
    """Return an uploader whose thread does nothing, so that the test says when it sends."""
    monkeypatch.setattr(Uploader, "_run", lambda self: None)
    return Uploader(REPOSITORY, folder, place, folder / "monitor.sqlite", TOKEN, **options)


def there(hub, repository=REPOSITORY) -> dict[str, dict]:
    return hub.store.repositories[repository]["commits"][-1]["files"] if repository in hub.store.repositories else {}


def named(hub) -> int:
    return json.loads(hub.store.blob(there(hub)[LATEST]["sha256"]).read_text())["epoch"]


def test_a_pointer_that_somebody_changed_is_put_back_with_the_next_status(monitored, hub, monkeypatch):
    folder, place, database = monitored
    own = PeerKey.load_or_create(place / IDENTITY)
    sends = uploader(folder, place, database, monkeypatch, monitors=(own.peer_id,))
    for epoch in 5, 6:
        checkpoint(place, database, epoch)
        sends.send(database)
    stranger = PeerKey.load_or_create(folder / "stranger.key")
    older, foreign = (pointer(REPOSITORY, epoch, folder_of(place, 5), key) for epoch, key in ((5, own), (9, stranger)))
    for wrong in older, foreign, b'{"epoch": 1e999}', b"[" * 10**5, None:
        hub.add(REPOSITORY, {"checkpoints/epoch-0000099/x": b"-", LATEST: wrong})
        sends.send(database, is_status_due=True)
        assert named(hub) == 6
    commits = len(hub.requests("POST .*/commit/"))
    sends.send(database, is_status_due=True)
    assert len(hub.requests("POST .*/commit/")) == commits, "what is right is not sent again"


def test_who_is_overtaken_waits_before_the_next_try(monitored, hub, monkeypatch):
    folder, place, database = monitored
    checkpoint(place, database, 5)
    hub.faults.append(Fault("POST .*/commit/", status=412))
    sends = Uploader(REPOSITORY, folder, place, folder / "monitor.sqlite", TOKEN)
    wait_until(lambda: "Somebody else has changed it" in sends.problem)
    sends.close()
    assert len(hub.requests("POST .*/commit/")) == 2, "the first, and the last one when it ends"
    assert not sends._thread.is_alive()


def test_the_newest_checkpoint_goes_first_and_the_pointer_names_it(monitored, hub, monkeypatch):
    folder, place, database = monitored
    checkpoint(place, database, 5)
    checkpoint(place, database, 7)
    sends = uploader(folder, place, database, monkeypatch)
    (folder / "README.md").write_text("# photos")
    drawn = {f"{name}/epoch-0000007.webp" for name in ("pictures", "best")}
    for name in "page/first.webp", "page/other.txt", *drawn:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"-")
    assert sends.send(database), "one more is left"
    assert not sends.send(database)
    latest = json.loads(hub.store.blob(there(hub)[LATEST]["sha256"]).read_text())
    assert latest["epoch"] == 7
    assert latest["files"]["model.safetensors"]["sha256"] == sha256_of(folder_of(place, 7) / "model.safetensors")
    assert {f"checkpoints/epoch-000000{epoch}/model.safetensors" for epoch in (5, 7)} <= there(hub).keys()
    assert {"status.json", "README.md", "page/first.webp", *drawn} <= there(hub).keys()
    assert "page/other.txt" not in there(hub)
    commits = len(hub.store.repositories[REPOSITORY]["commits"])
    assert not sends.send(database)
    assert len(hub.store.repositories[REPOSITORY]["commits"]) == commits, "nothing is sent twice"
    assert database.count("SELECT COUNT(*) FROM checkpoints WHERE revision IS NULL") == 0


def test_old_checkpoints_go_and_those_of_another_monitor_stay_and_stay_the_newest(monitored, hub, monkeypatch):
    folder, place, database = monitored
    sends = uploader(folder, place, database, monkeypatch)
    for epoch in 1, 2:
        checkpoint(place, database, epoch)
        sends.send(database)
    another = pointer(REPOSITORY, 9, folder_of(place, 1), PeerKey.load_or_create(folder / "another.key"))
    hub.add(REPOSITORY, {"checkpoints/epoch-0000009/model.safetensors": b"another's", LATEST: another})
    for epoch, days in (1, 20), (2, 20):
        database.change("UPDATE checkpoints SET made = :at WHERE epoch = :epoch",
                        at=time.time() - days * DAY_S + epoch, epoch=epoch)  # fmt: skip
    checkpoint(place, database, 3)
    sends.send(database)
    names = {path.split("/")[1] for path in there(hub) if path.startswith("checkpoints/")}
    assert names == {"epoch-0000002", "epoch-0000003", "epoch-0000009"}, "of the two of one week, the last is kept"
    assert named(hub) == 9


def test_what_failed_is_tried_again_and_told_once(monitored, hub, monkeypatch):
    folder, place, database = monitored
    monkeypatch.setattr(uploading, "DELAYS_S", (0.05,))
    monkeypatch.setattr(uploading, "LOOK_S", 0.05)
    told = []
    checkpoint(place, database, 4)
    with hub.away():
        sends = Uploader(REPOSITORY, folder, place, folder / "monitor.sqlite", TOKEN, say=told.append)
        wait_until(lambda: sends.problem)
        time.sleep(0.5)
        assert len(told) == 1
        assert REPOSITORY in told[0]
    wait_until(lambda: LATEST in there(hub))
    sends.close()
    assert any("Checkpoint of epoch 4 is at" in line for line in told)
    assert sends.problem == ""


def test_the_history_becomes_one_commit_after_each_start_and_once_a_day(monitored, hub, monkeypatch):
    folder, place, database = monitored
    sends, lengths = uploader(folder, place, database, monkeypatch), []
    for epoch in 1, 2, 3, 4, 5:
        if epoch == 3:
            sends = uploader(folder, place, database, monkeypatch)
        elif epoch == 5:
            monkeypatch.setattr(uploading, "SQUASH_S", 0.0)
        checkpoint(place, database, epoch)
        sends.send(database)
        lengths.append(len(hub.store.repositories[REPOSITORY]["commits"]))
    assert lengths == [1, 2, 1, 2, 1]
    assert len([path for path in there(hub) if path.endswith("model.safetensors")]) == 5


def test_a_repository_that_is_to_be_private_is_made_so(monitored, hub, monkeypatch):
    folder, place, database = monitored
    checkpoint(place, database, 1)
    uploader(folder, place, database, monkeypatch, is_private=True).send(database)
    assert hub.store.repositories[REPOSITORY]["private"]
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{hub.url}/{REPOSITORY}/resolve/main/{LATEST}", trust_env=False).raise_for_status()


def test_a_monitor_whose_key_the_card_does_not_name_sends_nothing_and_says_so(monitored, mini, hub):
    folder, place, database = monitored
    checkpoint(place, database, 1)
    own, other, told = PeerKey.load_or_create(place / IDENTITY).peer_id, f"Qm{'1' * 44}", []
    run = mini.with_changes(name="photos", checkpoints=REPOSITORY).save(folder / "run")
    for monitors, sends in ((other,), False), ((other, own), True), ((), True):
        edit_run(run, monitors=monitors)
        monitor = Monitor(str(run), folder, lambda: Peer(place), token=TOKEN, say=told.append)
        uploads = monitor._uploader(monitor.card, Peer(place))
        assert (uploads is not None) == sends
        if uploads is not None:
            uploads.close()
    assert f"Nothing is sent to {REPOSITORY}: the run's card names its monitors ({other})" in told[0]
    assert LATEST in there(hub)


def test_a_monitor_takes_up_another_repository_and_sends_all_there(monitored, mini, hub, monkeypatch):
    folder, place, database = monitored
    checkpoint(place, database, 1)
    monkeypatch.setattr(uploading, "LOOK_S", 0.05)
    run = mini.with_changes(name="photos", checkpoints=REPOSITORY).save(folder / "run")
    monitor = Monitor(str(run), folder, lambda: Peer(place), token=TOKEN)
    monkeypatch.setattr(steward, "LOOK_S", 0.05)
    monkeypatch.setattr(steward, "CARD_EVERY_S", 0.0)
    watch = monitor._watch(database, Peer(place))
    try:
        for repository in REPOSITORY, "crew/other":
            edit_run(run, checkpoints=repository)
            wait_until(lambda named=repository: watch.steward.card.checkpoints == named)
            monitor._look(watch)
            wait_until(lambda: LATEST in there(hub, watch.uploader.repository))
            sent_to = "SELECT repository FROM checkpoints"  # of the one before until this one has all
            wait_until(lambda named=repository, asked=sent_to: database.row(asked)["repository"] == named)
            wait_until(lambda: database.count("SELECT COUNT(*) FROM checkpoints WHERE revision IS NULL") == 0)
        assert database.row("SELECT repository FROM checkpoints")["repository"] == "crew/other"
    finally:
        watch.steward.close()
        watch.uploader.close()


def test_each_picture_that_the_history_names_is_sent_and_none_twice(monitored, hub, monkeypatch):
    folder, place, database = monitored
    (folder / PICTURES).mkdir()
    sends, sent = uploader(folder, place, database, monkeypatch), []
    for epoch in range(0, 140, 2):
        (folder / PICTURES / f"{checkpoint_name(epoch)}.webp").write_bytes(b"picture %d" % epoch)
        if epoch in (40, 136, 138):  # of the others nothing was sent, as the Hub was away
            sends.send(database, is_status_due=True)
            before, files = sent[-1] if sent else set(), there(hub).keys()
            sent.append({name for name in files if name.startswith(PICTURES)})
            assert before <= sent[-1]
            assert {name for shown in drawings(folder).values() for name in shown.values()} <= sent[-1]
    told = sends._told(sends._names())
    assert [name for name in told if name.startswith(PICTURES)] == [f"{PICTURES}/{checkpoint_name(138)}.webp"]
