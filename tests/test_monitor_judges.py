"""What checkpoints draw is judged by figures that are right for right pictures, and low for wrong ones."""

import numpy as np
import pytest
import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.inference.captions import TrainingCaptions
from dalle_lib.monitor import evaluating, judging
from dalle_lib.monitor.evaluating import Evaluator
from dalle_lib.monitor.judging import Judge, parts_of, reciprocal_ranks
from dalle_lib.streaming.batches import codes_of

FEW, TRAINED, SIDE = 12, 80, 128


@pytest.fixture(scope="module")
def evaluator(mini):
    with pytest.MonkeyPatch.context() as patch:
        for module in judging, evaluating:
            patch.setattr(module, "JUDGED", FEW)
        patch.setattr(evaluating, "CANDIDATES", 3)
        patch.setattr(judging, "MAX_PIXELS", TRAINED * 64**2)
        yield Evaluator(mini, rows=48, prompts=4)


@pytest.fixture(scope="module")
def judge(evaluator) -> Judge:
    return evaluator.judge


def test_the_right_pictures_have_all_shares_and_the_ceiling(judge):
    found = judge.judge(judge.own)
    assert (found.captions, found.exact, found.object, found.colour, found.background) == (FEW, 1, 1, 1, 1)
    assert found.among == len(judge.train) + len(judge.held_out) == TRAINED + found.ranked
    assert found.rank == found.rank_ceiling > 5 * found.rank_chance
    assert found.nearest == found.nearest_held_out < 0.99


def test_pictures_of_other_captions_are_judged_wrong(judge):
    found = judge.judge(judge.own.roll(1, 0))
    assert found.exact == found.object == 0
    assert found.rank + found.rank_half_width < found.rank_ceiling


def test_a_model_that_repeats_training_pictures_is_told_by_nearest(judge):
    copies = judge.vqgan.decode(codes_of(judge.train[:FEW]))
    found = judge.judge(copies)
    assert found.nearest == pytest.approx(1.0, abs=1e-4)
    assert found.nearest > found.nearest_held_out + 0.05


def test_a_clip_that_sees_no_difference_ranks_last():
    assert reciprocal_ranks(torch.ones(2, 5), [0, 3]) == pytest.approx([1 / 5, 1 / 5])
    assert reciprocal_ranks(torch.tensor([[0.1, 0.9, 0.5]]), [2]) == [1 / 2]


def test_captions_have_an_object_a_colour_and_a_background():
    words = TrainingCaptions([], {"things": ["hot dog", "red apple"], "colours": ["red"], "backgrounds": ["blue"]})
    expected = {
        "red hot dog on a blue background": ("hot dog", "red", "blue"),
        "hot dog on an orange background": ("hot dog", "", "orange"),
        "red apple": ("red apple", "", ""),
    }
    assert {caption: tuple(parts_of(caption, words).values()) for caption in expected} == expected


@pytest.mark.chaos
def test_first_samples_are_chosen_by_nobody_and_the_best_by_clip(mini, evaluator, monkeypatch):
    model = load_model(mini.path(mini.checkpoint), mini.model).eval()
    pictures, judged = evaluator.draw(model)
    assert judged.captions == FEW
    assert pictures.nearest.width > pictures.nearest.height, "six columns of four"

    def fits(grid) -> float:
        cells = [grid.crop((x, 0, x + SIDE, SIDE)) for x in range(0, 4 * (SIDE + 4), SIDE + 4)]
        tensors = [torch.from_numpy(np.asarray(cell.resize((64, 64))).copy()) for cell in cells]
        pairs = zip(evaluator.prompts, tensors, strict=True)
        return sum(float(evaluator.judge.ranker.score(prompt, cell[None])) for prompt, cell in pairs) / len(cells)

    assert fits(pictures.best) > fits(pictures.first) + 0.01
    monkeypatch.setattr(evaluating, "DRAW_S", 0.0)
    slow, unjudged = evaluator.draw(model)
    assert (slow.best, slow.nearest, unjudged) == (None, None, None)
    assert slow.first.tobytes() == pictures.first.tobytes()
