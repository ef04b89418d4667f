"""A run that goes on draws with its newest checkpoint on the Hub, and with nothing else that lies there."""

import json

import pytest
import torch

from dalle_lib.checkpoint import load_model, save_model
from dalle_lib.files import BrokenFile, sha256_of
from dalle_lib.inference import TextToImage
from dalle_lib.run import RunCard
from dalle_lib.run.newest import LATEST, MODEL, OPTIMIZER, newest_checkpoint

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
    files = {name: {"sha256": sha256_of(tmp_path / MODEL), "bytes": 9} for name in (MODEL, OPTIMIZER)}
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


def test_a_finished_run_draws_with_its_last_checkpoint(card, sent):
    assert newest_checkpoint(card.with_changes(state="finished")) is None


def test_files_that_are_not_what_the_pointer_names_are_refused(card, sent, hub):
    told = sent[1] | {"files": {name: {"sha256": "0" * 64, "bytes": 9} for name in (MODEL, OPTIMIZER)}}
    hub.add(REPOSITORY, {LATEST: json.dumps(told).encode()})
    with pytest.raises(ValueError, match=r"expected checkpoints/epoch-0000030/model\.safetensors of crew/photos-check"):
        newest_checkpoint(card).fetched(MODEL)


@pytest.mark.parametrize(
    "change",
    [
        {"folder": "../../etc"},
        {"folder": "checkpoints/epoch-0000030/../.."},
        {"epoch": -1},
        {"epoch": 10**9},
        {"epoch": "30"},
        {"files": {}},
        {"files": {MODEL: {"sha256": "x", "bytes": 9}, OPTIMIZER: {"sha256": "x", "bytes": 9}}},
        {"files": {MODEL: {"sha256": "0" * 64}, OPTIMIZER: {"sha256": "0" * 64, "bytes": 1}}},
        {"files": [1]},
    ],
    ids=str,
)
def test_a_pointer_that_cannot_be_right_is_refused(card, sent, hub, change):
    hub.add(REPOSITORY, {LATEST: json.dumps(sent[1] | change).encode()})
    with pytest.raises(BrokenFile, match="what names the newest checkpoint"):
        newest_checkpoint(card)


def test_a_pointer_that_is_huge_is_not_fetched(card, sent, hub):
    hub.add(REPOSITORY, {LATEST: b" " * 2**21})
    assert newest_checkpoint(card) is None
