import json
import shutil

import pytest
from pydantic import ValidationError

from dalle_lib.run import RunCard


def test_a_saved_run_is_the_same_run(mini, tmp_path):
    folder = mini.save(tmp_path / "run")
    copy = RunCard.load(folder)
    assert copy.model_dump() == mini.model_dump()
    assert copy.fingerprint == mini.fingerprint
    assert copy.path(copy.vqgan).parent == folder


@pytest.mark.parametrize(
    "change",
    [
        {"averaging": {"target_batch_size": 512, "matchmaking_s": 3, "timeout_s": 20}},
        {"optimizer": {"lr": 0.02, "warmup_epochs": 5, "total_epochs": 60}},
        {"recipe": {"code_corruption": 0.2}},
        {"seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_peers_must_share_changes_the_fingerprint(mini, change):
    assert mini.with_changes(**change).fingerprint != mini.fingerprint


def test_addresses_and_weights_do_not_split_a_run(mini):
    moved = mini.with_changes(initial_peers=("/ip4/127.0.0.1/tcp/1/p2p/x",), checkpoint=None)
    assert moved.fingerprint == mini.fingerprint
    assert moved.key == mini.key


def test_a_changed_file_is_refused(mini, tmp_path):
    card = RunCard.load(mini.save(tmp_path / "run"))
    with open(card.path(card.tokenizer), "a") as handle:
        handle.write(" ")
    with pytest.raises(ValueError, match="not the file that run 'emoji-mini' names"):
        card.path(card.tokenizer)


def test_a_card_of_another_protocol_or_with_unknown_fields_is_refused(mini, tmp_path):
    file = mini.save(tmp_path / "run") / "run.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps({**card, "protocol": 99}))
    with pytest.raises(ValueError, match="update dalle_lib"):
        RunCard.load(file)
    file.write_text(json.dumps({**card, "surprise": 1}))
    with pytest.raises(ValidationError, match="surprise"):
        RunCard.load(file)


def test_an_unknown_run_is_an_error_with_the_choices(tmp_path):
    with pytest.raises(ValueError, match=r"embedded run \(emoji, emoji-mini\), a folder"):
        RunCard.load(str(tmp_path / "nowhere"))


def test_a_run_can_be_moved(mini, tmp_path):
    mini.save(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    card = RunCard.load(tmp_path / "there")
    assert card.path(card.vqgan).is_file()
