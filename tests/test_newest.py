"""A run that goes on draws with its newest checkpoint on the Hub, and with nothing else that lies there."""

import base64
import json
import re
from contextlib import closing

import pytest
import torch

from dalle_lib.auth.keys import PeerKey
from dalle_lib.checkpoint import load_model, save_model, save_tensors
from dalle_lib.files import BrokenFile, sha256_of
from dalle_lib.inference import TextToImage
from dalle_lib.monitor.uploading import pointer
from dalle_lib.run import RunCard, batches_of
from dalle_lib.run.files import BEFORE, MODEL, OPTIMIZER
from dalle_lib.run.newest import LATEST, ForeignSignature, newest_checkpoint
from dalle_lib.swarm.peer import beginning
from dalle_lib.swarm.peer.beginning import fetch_state
from dalle_lib.swarm.peer.state import resume_batches
from dalle_lib.swarm.process.events import HUB, EventLog, read_events

REPOSITORY, FOLDER = "crew/photos-checkpoints", "checkpoints/epoch-0000030"


@pytest.fixture
def card(mini, hub, tmp_path) -> RunCard:
    return RunCard.load(mini.with_changes(name="photos", checkpoints=REPOSITORY).save(tmp_path / "run"))


@pytest.fixture
def sent(card, hub, tmp_path):
    """Put a checkpoint of epoch 30 with weights of its own on the Hub, and return its model's file and the pointer."""
    model = load_model(card.path(card.checkpoint), card.model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    save_model(tmp_path / MODEL, model, 30)
    size = (tmp_path / MODEL).stat().st_size
    files = {name: {"sha256": sha256_of(tmp_path / MODEL), "bytes": size} for name in (MODEL, OPTIMIZER)}
    told = {"epoch": 30, "folder": FOLDER, "files": files}
    data = (tmp_path / MODEL).read_bytes()
    hub.add(REPOSITORY, {LATEST: json.dumps(told).encode(), f"{FOLDER}/{MODEL}": data, f"{FOLDER}/{OPTIMIZER}": data})
    return model, told


def first(model) -> torch.Tensor:
    return next(model.parameters()).detach()


def test_the_newest_checkpoint_is_what_is_drawn_with(card, sent):
    newest = newest_checkpoint(card)
    assert (newest.epoch, newest.repository) == (30, REPOSITORY)
    drawn_with = TextToImage.from_run(card.path(card.tokenizer).parent, device="cpu", clip=False).model
    assert torch.equal(first(drawn_with), first(sent[0]))


def test_where_none_was_sent_or_the_run_is_finished_it_is_the_cards_own(card, hub, mini):
    assert newest_checkpoint(card) is None
    own = TextToImage.from_run(card.path(card.tokenizer).parent, device="cpu", clip=False).model
    assert torch.equal(first(own), first(load_model(mini.path(mini.checkpoint), mini.model)))


def test_who_draws_with_a_run_before_its_first_checkpoint_is_told_what_to_do(mini, hub, tmp_path):
    for number, checkpoints in enumerate([REPOSITORY, None]):
        folder = mini.with_changes(checkpoint=None, checkpoints=checkpoints).save(tmp_path / str(number))
        with pytest.raises(ValueError, match=r"no checkpoint to draw with yet.*name the folder of a peer") as refused:
            TextToImage.from_run(folder, clip=False)
        assert (f"sends the first one to {REPOSITORY}" in str(refused.value)) == bool(checkpoints)


def test_a_finished_run_draws_with_its_last_checkpoint(card, sent):
    assert newest_checkpoint(card.with_changes(state="finished")) is None


def test_files_that_are_not_what_the_pointer_names_are_refused(card, sent, hub):
    told = sent[1] | {"files": {name: {"sha256": "0" * 64, "bytes": 5 * 10**7} for name in (MODEL, OPTIMIZER)}}
    hub.add(REPOSITORY, {LATEST: json.dumps(told).encode()})
    with pytest.raises(ValueError, match=r"expected checkpoints/epoch-0000030/model\.safetensors of crew/photos-check"):
        newest_checkpoint(card).fetched(MODEL)


def test_a_file_that_is_larger_than_promised_is_not_fetched(card, sent, hub):
    told = sent[1] | {"files": {name: each | {"bytes": 9} for name, each in sent[1]["files"].items()}}
    hub.add(REPOSITORY, {LATEST: json.dumps(told).encode()})
    newest = newest_checkpoint(card)
    with pytest.raises(ValueError, match="of at most 9 bytes"):
        newest.fetched(MODEL)
    assert not hub.requests(f"^GET .*{MODEL}")


def refuses(card, hub, pointer: dict, error: type[ValueError], words: str) -> bool:
    hub.add(REPOSITORY, {LATEST: json.dumps(pointer).encode()})
    try:
        newest_checkpoint(card)
    except error as refused:
        return re.search(words, str(refused)) is not None
    return False


def test_a_pointer_that_cannot_be_right_is_refused(card, sent, hub):
    changes = [
        {"folder": "../../etc"},
        {"folder": "checkpoints/epoch-0000030/../.."},
        {"folder": "checkpoints/epoch-0000031"},
        {"epoch": -1},
        {"epoch": 10**9},
        {"epoch": "30"},
        {"files": {}},
        {"files": {MODEL: {"sha256": "x", "bytes": 9}, OPTIMIZER: {"sha256": "x", "bytes": 9}}},
        {"files": {name: {"sha256": "0" * 64, "bytes": 10**15} for name in (MODEL, OPTIMIZER)}},
        {"files": {MODEL: {"sha256": "0" * 64}, OPTIMIZER: {"sha256": "0" * 64, "bytes": 1}}},
        {"files": [1]},
    ]
    told = "what names the newest checkpoint"
    assert [change for change in changes if not refuses(card, hub, sent[1] | change, BrokenFile, told)] == []


def test_a_pointer_that_is_huge_is_not_fetched(card, sent, hub):
    hub.add(REPOSITORY, {LATEST: b" " * 2**21})
    assert newest_checkpoint(card) is None


@pytest.fixture
def signed(card, sent, hub, tmp_path):
    """Return a card that names a monitor, a pointer that this signed, which lies on the Hub, and that monitor's key."""
    key = PeerKey.load_or_create(tmp_path / "identity")
    (tmp_path / OPTIMIZER).write_bytes((tmp_path / MODEL).read_bytes())
    told = pointer(REPOSITORY, 30, tmp_path, key)
    hub.add(REPOSITORY, {LATEST: told})
    return card.with_changes(monitors=(key.peer_id,)), json.loads(told), key


def test_a_pointer_that_the_cards_monitor_signed_is_taken(signed):
    card, told, _ = signed
    newest = newest_checkpoint(card)
    assert (newest.epoch, newest.sha256[MODEL]) == (30, told["files"][MODEL]["sha256"])
    assert newest.fetched(MODEL).stat().st_size == newest.bytes[MODEL]


def test_a_pointer_that_was_changed_is_refused_and_not_taken_for_broken(signed, hub):
    card, told, _ = signed
    changes = [
        {"epoch": 31, "folder": "checkpoints/epoch-0000031"},
        {"signature": ""},
        {"signature": 7},
        {"public_key": "A" * 10**5},
        {"public_key": base64.b64encode(b"no key").decode()},
    ]
    words = "to be signed by a monitor of 'photos', but .*Ask the run's organiser"
    assert [change for change in changes if not refuses(card, hub, told | change, ForeignSignature, words)] == []
    at_the_hubs_word = newest_checkpoint(card.with_changes(monitors=()))
    assert at_the_hubs_word.repository == REPOSITORY, "without monitors it is the Hub's"


def test_a_pointer_of_another_key_or_for_another_repository_is_refused(signed, hub, tmp_path):
    card, _, key = signed
    other = PeerKey.load_or_create(tmp_path / "other")
    hub.add(REPOSITORY, {LATEST: pointer(REPOSITORY, 30, tmp_path, other)})
    with pytest.raises(ForeignSignature, match=f"that the card of 'photos' names .{key.peer_id}., but {other.peer_id}"):
        newest_checkpoint(card)
    hub.add(REPOSITORY, {LATEST: pointer("crew/another", 30, tmp_path, key)})
    with pytest.raises(ForeignSignature, match="it was changed after it was signed"):
        newest_checkpoint(card)


def test_a_download_is_told_and_is_given_up_by_an_error(signed, hub):
    newest, came = newest_checkpoint(signed[0]), []

    def give_up(bytes_here: int) -> None:
        raise TimeoutError(f"{bytes_here} bytes are too few")

    with pytest.raises(TimeoutError, match="too few"):
        newest.fetched(MODEL, give_up)
    newest.fetched(MODEL, came.append)
    assert came == sorted(came)
    assert came[-1] == newest.bytes[MODEL]


def test_who_is_shown_a_foreign_pointer_begins_without_the_checkpoint_and_says_why(signed, tmp_path, hub):
    card, _, key = signed
    folder = tmp_path / "peer"
    folder.mkdir()
    fetch_state(card, folder, EventLog(folder))
    assert {event["event"] for event in read_events(folder)} == {"taking"}
    assert (folder / MODEL).read_bytes() == (tmp_path / MODEL).read_bytes()
    for name in MODEL, OPTIMIZER:
        (folder / name).unlink()
    fetch_state(card.with_changes(monitors=(f"Qm{'1' * 44}",)), folder, EventLog(folder))
    assert f"but {key.peer_id} has signed it" in read_events(folder)[-1]["problem"]
    assert not (folder / MODEL).exists()


def test_a_checkpoint_that_comes_too_slowly_is_given_up_and_gone_on_with_later(signed, tmp_path, hub, monkeypatch):
    card, _, _ = signed
    folder = tmp_path / "peer"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(beginning, "GRACE_S", 0.0)
        patch.setattr(beginning, "SLOWEST_BYTES_PER_S", 10**15)
        fetch_state(card, folder, EventLog(folder))
    assert "it comes with less than" in read_events(folder)[-1]["problem"]
    assert not (folder / MODEL).exists()
    fetch_state(card, folder, EventLog(folder))
    assert read_events(folder)[-1]["source"] == HUB
    assert (folder / OPTIMIZER).exists()


def test_a_checkpoint_of_another_epoch_than_its_pointer_says_is_not_taken(signed, tmp_path, hub):
    card, _, key = signed
    folder = tmp_path / "peer"
    folder.mkdir()
    state = (tmp_path / MODEL).read_bytes()  # of epoch 30
    hub.add(REPOSITORY, {f"checkpoints/epoch-0000031/{name}": state for name in (MODEL, OPTIMIZER)})
    hub.add(REPOSITORY, {LATEST: pointer(REPOSITORY, 31, tmp_path, key)})
    fetch_state(card, folder, EventLog(folder))
    assert "expected a state of epoch 31, but it is of epoch 30" in read_events(folder)[-1]["problem"]
    assert not (folder / OPTIMIZER).exists()


def test_a_broken_checkpoint_of_the_hub_stops_no_newcomer_and_own_progress_is_never_removed(signed, tmp_path, hub):
    folder, broken = tmp_path / "peer", BrokenFile("it holds NaN")
    folder.mkdir()
    fetch_state(signed[0], folder, EventLog(folder))
    beginning.give_up_fetched(folder, broken, EventLog(folder))
    assert not (folder / OPTIMIZER).exists()
    assert "it holds NaN" in read_events(folder)[-1]["problem"]
    (folder / beginning.FROM_HUB).unlink()
    (folder / OPTIMIZER).write_bytes(b"own")
    with pytest.raises(BrokenFile, match="it holds NaN"):
        beginning.give_up_fetched(folder, broken, EventLog(folder))
    assert (folder / OPTIMIZER).read_bytes() == b"own"


@pytest.mark.parametrize("is_broken", [False, True], ids=["whole", "broken"])
def test_a_checkpoint_of_the_hub_leaves_the_last_own_state_that_can_be_read(signed, tmp_path, monkeypatch, is_broken):
    monkeypatch.setattr(beginning, "RECENT", 0)
    folder = tmp_path / "peer"
    folder.mkdir()
    for name, epoch in (BEFORE, 1), (OPTIMIZER, 2):
        save_tensors(folder / name, {"a": torch.zeros(1)}, {"epoch": str(epoch)})
    if is_broken:
        (folder / OPTIMIZER).write_bytes(b"")
    expected = (folder / (BEFORE if is_broken else OPTIMIZER)).read_bytes()
    fetch_state(signed[0], folder, EventLog(folder))
    assert (folder / OPTIMIZER).read_bytes() == (tmp_path / OPTIMIZER).read_bytes()
    assert (folder / BEFORE).read_bytes() == expected


def test_a_file_that_differs_from_its_hash_is_fetched_anew_the_next_time(signed, hub):
    card = signed[0]
    newest = newest_checkpoint(card)
    right = newest.fetched(MODEL).read_bytes()
    newest.fetched(MODEL).write_bytes(b"of a broken disk")
    with pytest.raises(ValueError, match="it was removed, try again later"):
        newest.fetched(MODEL)
    assert newest.fetched(MODEL).read_bytes() == right


@pytest.mark.parametrize("data", [{}, {"data": "["}, {"data": "[" * 10**5}, {"data": '{"position": 1e999}'}])
def test_a_checkpoint_that_tells_nonsense_of_the_data_has_them_begin_anew(data, mini, tmp_path):
    save_tensors(tmp_path / OPTIMIZER, {"a": torch.zeros(1)}, {"epoch": "30", **data})
    with closing(batches_of(mini, 4, seed=1)) as batches:
        resume_batches(tmp_path / OPTIMIZER, batches)
        assert batches.state_dict()["position"] == 0
