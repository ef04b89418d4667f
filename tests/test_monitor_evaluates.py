"""Checkpoints are examined by the same rows, prompts and seed, so that they can be compared."""

import copy
import json
from contextlib import closing

import pytest
from PIL import Image

from dalle_lib.checkpoint import load_model, save_model, save_tensors
from dalle_lib.evaluation import image_loss
from dalle_lib.model import DALLE
from dalle_lib.monitor import evaluating
from dalle_lib.monitor.checkpoints import folder_of, note_new
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.evaluating import Evaluator, Examiner
from dalle_lib.monitor.lapse import time_lapse
from dalle_lib.monitor.settings import MonitorSettings

GRID, ROWS, PROMPTS = (4 * 132, 132), 32, 4
"""Pixels of as many pictures as there are prompts, each with a gap; and rows and prompts, which are few."""


@pytest.fixture(scope="module")
def evaluator(mini) -> Evaluator:
    return Evaluator(mini, ROWS, PROMPTS, judges=False)


@pytest.fixture(scope="module")
def model(mini):
    return load_model(mini.path(mini.checkpoint), mini.model).eval()


def test_the_loss_is_that_of_the_held_out_rows_with_an_honest_interval(evaluator, model):
    figures = evaluator.examine(model)
    assert figures.rows == len(evaluator.rows)
    assert figures.held_out_loss == pytest.approx(image_loss(model, evaluator.rows, evaluator.tokenizer), rel=1e-4)
    halves = [image_loss(model, evaluator.rows[start::2], evaluator.tokenizer) for start in (0, 1)]
    assert abs(halves[0] - halves[1]) < 4 * figures.half_width, "the means of two halves differ by sqrt(4) errors"
    assert 0 < figures.half_width < 0.2 * figures.held_out_loss


def test_a_slow_machine_examines_fewer_rows_and_says_so(evaluator, model, monkeypatch):
    monkeypatch.setattr(evaluating, "EXAMINE_S", 0.0)
    assert evaluator.examine(model).rows == evaluating.MIN_ROWS


def test_the_same_weights_draw_the_same_pictures(evaluator, model):
    (first, _), (again, _) = evaluator.draw(model), evaluator.draw(model)
    assert first.first.tobytes() == again.first.tobytes()
    assert first.first.size == GRID
    assert len(set(evaluator.prompts)) == PROMPTS


def test_new_checkpoints_get_figures_and_pictures_and_a_broken_one_is_told_once(mini, model, tmp_path, monkeypatch):
    monkeypatch.setattr(Examiner, "_run", lambda self: None)
    monkeypatch.setattr(evaluating, "EXAMINE_S", 0.0)
    told, place = [], tmp_path / "monitor"
    settings = MonitorSettings(rows=ROWS, prompts=PROMPTS, judges=False)
    for epoch in 4, 5:
        folder = folder_of(place, epoch)
        folder.mkdir(parents=True)
        save_model(folder / "model.safetensors", model, epoch)
        save_tensors(folder / "optimizer.safetensors", {}, {"epoch": str(epoch)})
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        assert note_new(place, database) == [4, 5]
        broken = folder_of(place, 4) / "model.safetensors"
        broken.write_bytes(broken.read_bytes()[:-100])
        examiner = Examiner(mini, tmp_path, place, tmp_path / "monitor.sqlite", told.append, settings)
        for _ in range(3):
            examiner.look(database)
        found = {row["epoch"]: json.loads(row["figures"]) for row in database.rows("SELECT * FROM checkpoints")}
    assert found[5]["rows"] > 0
    assert found[4] == {}
    assert [line.partition(":")[0] for line in told] == [
        "Checkpoint of epoch 5", "The checkpoint of epoch 4 cannot be examined"
    ]  # fmt: skip
    examiner.begin()
    files = [tmp_path / f"lapse.{kind}" for kind in ("webp", "gif")]
    assert time_lapse(tmp_path, *files) == 2
    for file in files:
        with Image.open(file) as lapse:
            assert (lapse.width, lapse.n_frames) == (GRID[0], 2)
    assert json.loads((tmp_path / "page" / "prompts.json").read_text())["unseen"] == examiner.evaluator.unseen
    assert (tmp_path / "page" / "first.webp").read_bytes() == (
        tmp_path / "pictures" / "epoch-0000005.webp"
    ).read_bytes()


def test_what_is_found_of_a_checkpoint_is_not_told_of_the_one_that_comes_instead_when_the_run_goes_back(
    mini, model, tmp_path, monkeypatch
):
    monkeypatch.setattr(Examiner, "_run", lambda self: None)
    monkeypatch.setattr(evaluating, "EXAMINE_S", 0.0)
    place, file = tmp_path / "monitor", folder_of(tmp_path / "monitor", 5) / "model.safetensors"
    file.parent.mkdir(parents=True)
    save_model(file, model, 5)
    save_tensors(file.with_name("optimizer.safetensors"), {}, {"epoch": "5"})
    with closing(MonitorDatabase(tmp_path / "monitor.sqlite")) as database:
        note_new(place, database)
        settings = MonitorSettings(rows=ROWS, prompts=PROMPTS, judges=False)
        examiner = Examiner(mini, tmp_path, place, tmp_path / "monitor.sqlite", settings=settings)
        draw, other = examiner.evaluator.draw, copy.deepcopy(model)
        next(other.parameters()).data.mul_(0.5)

        def goes_back(drawing: DALLE) -> tuple:
            database.change("DELETE FROM checkpoints")
            save_model(file, other, 5)
            assert note_new(place, database) == [5]
            return draw(drawing)

        monkeypatch.setattr(examiner.evaluator, "draw", goes_back)
        examiner.look(database)
        assert [row["figures"] for row in database.rows("SELECT figures FROM checkpoints")] == [None]
        assert not (tmp_path / "pictures").exists()
        monkeypatch.setattr(examiner.evaluator, "draw", draw)
        examiner.look(database)
        assert [row["figures"] for row in database.rows("SELECT figures FROM checkpoints")] != [None]
    assert (tmp_path / "pictures" / "epoch-0000005.webp").exists()


def test_without_pictures_there_is_no_time_lapse(tmp_path):
    assert time_lapse(tmp_path, tmp_path / "lapse.gif") == 0
    assert not (tmp_path / "lapse.gif").exists()
