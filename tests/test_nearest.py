"""The training pictures nearest to a prompt, with the small embedded run."""

import io

import pytest
import torch
from PIL import Image

from dalle_lib.dashboard.pictures import beside_training
from dalle_lib.inference import TextToImage
from dalle_lib.inference.captions import training_rows


@pytest.fixture(scope="module")
def draw() -> TextToImage:
    return TextToImage.from_run("emoji-mini", device="cpu")


@pytest.fixture(scope="module")
def found(draw):
    return draw.nearest_training("a cactus on pink", count=3)


def test_they_are_those_whose_embeddings_are_nearest_to_the_prompts(draw, mini, found):
    rows = training_rows(mini)[:150]
    pictures = draw.vqgan.decode(torch.stack([torch.from_numpy(row.codes) for row in rows]))
    scores = draw.ranker.score("cactus on a pink background", pictures)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    better = {row.caption for row, score in zip(rows, scores, strict=True) if score > found.scores[-1] + 1e-4}
    assert better <= set(found.captions)
    assert len(set(found.captions)) == 3
    assert draw.nearest_training("the cactus").captions[0] == "cactus"
    again = draw.ranker.score("cactus on a pink background", found.pictures)
    torch.testing.assert_close(again, found.scores, atol=1e-4, rtol=0)


def test_all_pictures_are_embedded_once(draw, found, monkeypatch):
    monkeypatch.setattr(draw.ranker, "embed_pictures", lambda *_: pytest.fail("embedded again"))
    assert draw.nearest_training("cactus on a pink background", count=3).captions == found.captions
    assert len(draw.nearest_training("pizza", count=10_000).captions) == 578


def test_they_show_themselves(draw, found):
    assert repr(found).startswith(
        f"<Training pictures nearest to 'cactus on a pink background': {found.captions[0]} (0."
    )
    assert Image.open(io.BytesIO(found._repr_png_())).size == (3 * 128 + 2 * 4, 128 + 18)
    page = beside_training(draw, draw("cactus", candidates=1, best=1, seed=0), count=2).data
    assert page.count("<img") == 3


def test_where_the_training_data_are_not_at_hand_this_is_said(draw):
    paper = TextToImage("paper", draw.model, draw.tokenizer, draw.vqgan, draw.ranker)
    with pytest.raises(ValueError, match="the training data of paper are not at hand"):
        paper.nearest_training("cactus")
    drawing = draw("cactus", candidates=1, best=1, seed=0)
    assert "not on this machine" in beside_training(paper, drawing).data
