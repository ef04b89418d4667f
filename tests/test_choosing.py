"""Which candidates are shown: what counts as the same picture, what CLIP's noise decides, and how noise is measured."""

import pytest
import torch

from dalle_lib.inference import Choice, choose_best
from dalle_lib.inference.choosing import SAME_LEVELS, different
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.streaming import read_codes
from dalle_lib.vqgan import load_vqgan


def flat(*levels: float) -> torch.Tensor:
    """Return plain grey pictures of 32x48 pixels."""
    return torch.tensor(levels).round().to(torch.uint8)[:, None, None, None].expand(-1, 32, 48, 3)


def test_each_different_picture_is_kept_once_with_its_count_and_the_middle_one_stands_for_it():
    scores, pictures = torch.tensor([0.5, 0.9, 0.8, 0.7, 0.85]), flat(10, 50, 51, 90, 52)
    assert choose_best(scores, pictures, 4) == [Choice(2, 3), Choice(3, 1), Choice(0, 1)]
    assert choose_best(scores, pictures, 2) == [Choice(2, 3), Choice(3, 1)]


def test_pictures_are_the_same_up_to_the_threshold():
    scores = torch.tensor([0.9, 0.8])
    assert len(different(scores, flat(50, 50 + SAME_LEVELS - 1))) == 1
    assert len(different(scores, flat(50, 50 + SAME_LEVELS))) == 2


def test_among_scores_that_noise_may_have_ordered_the_commoner_picture_comes_first():
    scores, pictures = torch.tensor([0.90, 0.89, 0.89, 0.80, 0.80, 0.80]), flat(10, 50, 50, 90, 90, 90)
    assert [c.number for c in choose_best(scores, pictures, 3, noise=0.0)] == [0, 1, 3]
    assert [c.number for c in choose_best(scores, pictures, 3, noise=0.02)] == [1, 0, 3]
    assert [c.number for c in choose_best(scores, pictures, 3, noise=0.2)] == [3, 1, 0]


@pytest.fixture(scope="module")
def data():
    card = RunCard.load("emoji")
    rows = read_codes(f"{card.data_source(card.data.train)}/codes.parquet", card.data.format)[::90]
    vqgan = load_vqgan(card.path(card.vqgan))
    pictures = vqgan.decode(torch.stack([torch.from_numpy(row.codes) for row in rows]))
    return CLIPRanker(card.clip_source()), vqgan, [row.caption for row in rows], pictures


def test_a_picture_coded_once_more_is_the_same_and_that_of_another_caption_is_not(data):
    _, vqgan, captions, pictures = data
    again = vqgan.decode(vqgan.encode(pictures))
    same = [
        len(different(torch.tensor([1.0, 0.0]), torch.stack(pair))) == 1 for pair in zip(pictures, again, strict=True)
    ]
    assert sum(same) / len(same) > 0.9
    assert len(different(torch.rand(len(captions)), pictures)) == len(captions)


def test_details_that_differ_all_over_are_the_same_picture_and_a_smudge_is_not(data):
    pictures = data[-1]
    grain = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(0)) * 40
    grainy = (pictures + grain).clamp(0, 255).to(torch.uint8)
    smudged = pictures.clone()
    smudged[:, 28:36, 28:36] ^= 128  # levels move by 128 each
    scores = torch.tensor([1.0, 0.0])
    for one, *others in zip(pictures, grainy, smudged, strict=True):
        assert [len(different(scores, torch.stack([one, other]))) for other in others] == [1, 2]


def test_noise_is_how_far_scores_move_with_the_picture(data):
    ranker, _, captions, pictures = data
    few, before, changes = pictures[:6], ranker.score(captions[0], pictures[:6]), []
    for dims, edge, inside in ((1, -1, 1), (1, 0, -1), (2, -1, 1), (2, 0, -1)):
        index = (torch.arange(64) + inside).clamp(0, 63)
        assert index[edge] == index[edge - inside], "the edge is repeated"
        changes.append(ranker.score(captions[0], few.index_select(dims, index)) - before)
    expected = torch.stack(changes).square().mean().sqrt()
    assert ranker.noise(captions[0], few) == pytest.approx(float(expected), rel=1e-3)
    assert expected > 0.005
    assert ranker.noise(captions[0], few * 0 + 200) < 1e-5, "a plain picture is the same wherever it is moved"
