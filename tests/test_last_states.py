"""A trainer keeps its last two states, and goes on from the one before where the last cannot be used."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from full_disk import full_disk
from peer_files import save_progress
from small_models import random_model

from dalle_lib.checkpoint import save_tensors
from dalle_lib.files import BrokenFile
from dalle_lib.run.files import BEFORE, MODEL, OPTIMIZER
from dalle_lib.swarm.peer.beginning import FROM_HUB, last_state
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.peer.state import save_state
from dalle_lib.swarm.process.events import EventLog, read_events
from dalle_lib.swarm.process.folder import require_own, saved_epoch
from dalle_lib.troubles import trouble_in


def snapshot(epoch: int, value: float = 1.0) -> Snapshot:
    statistics = {"state": {0: {"first": torch.full((3,), value)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return Snapshot(epoch, [torch.full((5,), float(epoch))], statistics)


@pytest.fixture
def save(mini, tmp_path):
    """Saves a state of an epoch in the folder of a peer."""
    return lambda epoch, card=mini, **values: save_state(tmp_path, card, random_model(), snapshot(epoch, **values))


@pytest.fixture
def begin(mini, tmp_path):
    """Tells from which epoch the peer goes on; None if from none of its own."""

    def begin(*, has_others: bool = False) -> int | None:
        found = last_state(tmp_path, snapshot(0), mini.fingerprint, EventLog(tmp_path), has_others=has_others)
        assert found is None or float(found[1].parameters[0][0]) == found[1].epoch
        return found and found[1].epoch

    return begin


def problems(folder: Path) -> list[str]:
    return [event["problem"] for event in read_events(folder)]


def cut(to: Callable[[bytes], bytes]) -> Callable:
    return lambda file, save, card: file.write_bytes(to(file.read_bytes()))


BREAKING = {
    "truncated": cut(lambda data: data[:-1]),
    "half written": cut(lambda data: data[: len(data) // 2]),
    "of a power cut": cut(lambda data: bytes(len(data))),
    "empty": cut(lambda data: b""),
    "of another run": lambda file, save, card: save(31, card.with_changes(seed=card.seed + 1)),
    "with NaN": lambda file, save, card: save(31, value=math.nan),
}
IS_SEEN = {"truncated", "half written", "of a power cut", "empty"}
"""What is seen without reading all of it."""


@pytest.mark.parametrize("kind", BREAKING)
def test_a_peer_goes_on_from_the_state_before_a_broken_one_and_one_line_says_what_to_do(
    kind, mini, save, begin, tmp_path
):
    save(21)
    (tmp_path / OPTIMIZER).rename(tmp_path / BEFORE)
    save_tensors(tmp_path / OPTIMIZER, {"any": torch.ones(99)}, {"epoch": "31", "fingerprint": mini.fingerprint})
    kept = (tmp_path / BEFORE).read_bytes()
    BREAKING[kind](tmp_path / OPTIMIZER, save, mini)
    (tmp_path / BEFORE).write_bytes(kept)
    broken = (tmp_path / OPTIMIZER).read_bytes()
    assert saved_epoch(tmp_path) == (21 if kind in IS_SEEN else 31)
    assert begin() == 21
    (told,) = problems(tmp_path)
    assert "its saved progress optimizer.safetensors is broken (" in told
    assert f"goes on from that of epoch 21. Remove {tmp_path / 'optimizer.broken'}, and check this disk" in told
    assert trouble_in(told).title == "Progress fell back"
    assert (tmp_path / "optimizer.broken").read_bytes() == broken
    assert saved_epoch(tmp_path) == 21
    assert begin() == 21, "the next start does not try the broken one anew"
    assert len(problems(tmp_path)) == 1
    save(41)
    assert begin() == 41
    (tmp_path / OPTIMIZER).write_bytes(b"")
    assert begin() == 21, "it was kept"


def test_where_no_state_can_be_used_others_give_theirs_and_a_peer_alone_is_told(save, begin, tmp_path):
    save(11)
    save(21)
    for name in OPTIMIZER, BEFORE:
        (tmp_path / name).write_bytes(b"broken")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    words = rf"{OPTIMIZER} cannot be read .*Remove it: `dalle-lib join` then takes"
    for ask in begin, lambda: saved_epoch(tmp_path):
        with pytest.raises(BrokenFile, match=words) as told:
            ask()
        assert f"Remove {tmp_path / BEFORE}, too: it is broken as well (" in str(told.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert begin(has_others=True) is None
    assert all("takes over the others' progress. Remove" in told for told in problems(tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {
        MODEL, "optimizer.broken", "optimizer.before.broken", "events.jsonl"
    }  # fmt: skip


def test_a_peer_that_is_killed_between_the_two_renames_of_a_save_goes_on_from_the_state_before(save, begin, tmp_path):
    save(11)
    save(21)
    (tmp_path / OPTIMIZER).rename(tmp_path / BEFORE)
    assert (saved_epoch(tmp_path), begin()) == (21, 21)
    assert not read_events(tmp_path)


def test_two_states_are_kept_and_a_full_disk_takes_neither(save, begin, tmp_path):
    for epoch in 11, 21, 31:
        save(epoch)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        save(41)
    assert begin() == 31
    (tmp_path / OPTIMIZER).write_bytes(b"")
    assert begin() == 21
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_state_of_the_same_epoch_and_a_broken_one_are_not_kept_in_place_of_the_state_before(save, begin, tmp_path):
    for epoch in 11, 21, 21:  # as after going back to the last copy
        save(epoch)
    assert begin() == 21
    (tmp_path / OPTIMIZER).write_bytes(b"")
    save(31)
    assert begin() == 31
    (tmp_path / OPTIMIZER).write_bytes(b"")
    assert begin() == 11


def test_a_broken_checkpoint_of_the_hub_gives_way_to_own_progress(save, begin, tmp_path):
    save(11)
    (tmp_path / OPTIMIZER).rename(tmp_path / BEFORE)
    (tmp_path / OPTIMIZER).write_bytes(b"of the Hub")
    (tmp_path / FROM_HUB).touch()
    assert begin() == 11
    (told,) = problems(tmp_path)
    assert told.startswith("begins without the newest checkpoint: ")
    assert not (tmp_path / OPTIMIZER).exists()


def test_a_folder_with_a_broken_last_state_is_still_that_of_its_run(mini, tmp_path):
    save_progress(tmp_path, mini, epoch=11)
    (tmp_path / OPTIMIZER).rename(tmp_path / BEFORE)
    (tmp_path / OPTIMIZER).write_bytes(b"")
    require_own(tmp_path, mini)
    with pytest.raises(ValueError, match="belongs to run 'emoji-mini' and holds progress up to epoch 11"):
        require_own(tmp_path, mini.with_changes(name="other", seed=mini.seed + 1))
