"""The scripts of the page that draws, held against Python: chances, text tokens, captions, sampling, the order."""

import sys

import numpy as np
import pytest
import torch
from checkout import ROOT
from draw_prompts import WORDINGS
from javascript import run_javascript

from dalle_lib.inference.captions import TrainingCaptions
from dalle_lib.inference.choosing import choose_best
from dalle_lib.model.sampling import code_probabilities, draw
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer


def scripts(*names: str) -> list:
    return [ROOT / "site" / "_static" / f"draw_{name}.js" for name in names]


@pytest.fixture(scope="module")
def card() -> RunCard:
    return RunCard.load("emoji")


@pytest.fixture(scope="module")
def words(card) -> dict:
    """What the page knows of words."""
    sys.path.insert(0, str(ROOT / "site"))
    try:
        from making.draw import words
    finally:
        sys.path.remove(str(ROOT / "site"))
    return words(card)


def test_chances_are_those_of_numpy():
    asked = [[0, 0], [7, 3], [2**32, 1], [2**40 + 5, 31], [2**63 - 1, 70_000]]
    code = "pairs => pairs.map(([seed, i]) => Array.from(dalle.chances(BigInt(seed), i, 300)))"
    found = run_javascript(scripts("chances"), code, [[str(seed), i] for seed, i in asked])
    assert found == [np.random.default_rng([seed, i]).random(300).tolist() for seed, i in asked]


def test_text_tokens_of_all_captions_and_of_odd_ones_are_those_of_the_tokenizer(card, words):
    captions = [*words["captions"], *WORDINGS, "naïve ﬁ ǅ İ x\u200dy z_z a-1b2", "background " * 40]
    code = """({told, captions}) => {
      const tokenizer = new dalle.Tokenizer(told);
      return captions.map((caption) => tokenizer.padded(caption, 16));
    }"""
    found = run_javascript(scripts("tokens"), code, {"told": words["tokenizer"], "captions": captions})
    expected = CaptionTokenizer(card.path(card.tokenizer), 16)(captions).tolist()
    assert [c for c, f, e in zip(captions, found, expected, strict=True) if f != e] == []


def test_prompts_are_written_and_their_news_are_told_as_in_python(card, words):
    captions = TrainingCaptions.of(card)
    prompts = [*WORDINGS, *words["captions"][::400]]
    code = """({captions, words, prompts}) => {
      const known = new dalle.Captions(captions, words);
      return prompts.map((prompt) => [known.asWritten(prompt), known.noveltyOf(prompt)]);
    }"""
    given = {"captions": words["captions"], "words": words["words"], "prompts": prompts}
    found = run_javascript(scripts("spelling", "captions"), code, given)
    expected = [[captions.as_written(prompt), str(captions.novelty_of(prompt))] for prompt in prompts]
    assert [[p, f, e] for p, f, e in zip(prompts, found, expected, strict=True) if f != e] == []
    assert sum(bool(novelty) for _, novelty in expected) > 10


@pytest.mark.parametrize(
    "settings",
    [
        {"topK": 5, "topP": 1, "temperature": 1},
        {"topK": 0, "topP": 0.75, "temperature": 1},
        {"topK": 20, "topP": 0.5, "temperature": 0.7},
        {"topK": 0, "topP": 0, "temperature": 3},
    ],
)
def test_codes_are_drawn_from_the_same_probabilities_as_in_python(settings):
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(3)) * 3
    chances = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    code = """({logits, chances, settings}) => logits.map((row, place) => {
      const shares = dalle.sampling.probabilities(Float32Array.from(row), settings);
      return [Array.from(shares), dalle.sampling.draw(shares, chances[place])];
    })"""
    given = {"logits": logits.tolist(), "chances": chances.tolist(), "settings": settings}
    shares, codes = zip(*run_javascript(scripts("sampling"), code, given), strict=True)
    names = {"top_k": settings["topK"], "top_p": settings["topP"], "temperature": settings["temperature"]}
    expected = code_probabilities(logits, **names)
    assert torch.allclose(torch.tensor(shares, dtype=torch.float32), expected, atol=1e-6)
    assert list(codes) == draw(expected, chances).tolist()


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_order_is_that_of_choose_best(noise):
    generator = torch.Generator().manual_seed(5)
    kinds = torch.randint(60, 190, (4, 1, 1, 3), generator=generator).expand(4, 64, 64, 3).clone()
    kinds[:, :32] = torch.tensor([20, 100, 180, 250])[:, None, None, None]
    of_kind = [0, 1, 1, 2, 0, 1, 3, 1, 2]
    noisy = kinds[of_kind] + torch.randint(-9, 9, (9, 64, 64, 3), generator=generator)
    pictures = noisy.clamp(0, 255).to(torch.uint8)
    scores = torch.tensor([0.5, 0.4, 0.1, 0.9, 0.55, 0.3, 0.7, 0.35, 0.2])
    code = """({scores, pictures, noise}) => {
      const all = pictures.map((rgb) => ({width: 64, height: 64, rgb: Uint8Array.from(rgb)}));
      return dalle.choosing.ordered(scores, all, noise).map(({number, members}) => [number, members.length]);
    }"""
    given = {"scores": scores.tolist(), "pictures": pictures.flatten(1).tolist(), "noise": noise}
    found = run_javascript(scripts("choosing"), code, given)
    assert found == [[choice.number, choice.count] for choice in choose_best(scores, pictures, 9, noise)]
    assert len(found) == 4
