"""The embedded runs' assets: data, tokenizer, VQ-GAN and models fit together and are as good as they should be."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import Gallery, choose_captions, draw_and_compare, examine, image_loss
from dalle_lib.inference import TrainingCaptions
from dalle_lib.model import DALLE
from dalle_lib.replay import RECORDING
from dalle_lib.run import EMBEDDED, EMBEDDED_RUNS, RunCard
from dalle_lib.streaming import TEXT, CaptionTokenizer, read_codes
from dalle_lib.streaming.prepare.opening import ICONS
from dalle_lib.vqgan import load_vqgan

ROOT = Path(__file__).parent.parent


@pytest.fixture(params=EMBEDDED_RUNS)
def card(request) -> RunCard:
    return RunCard.load(request.param)


@pytest.fixture(scope="module")
def tokenizer(mini) -> CaptionTokenizer:
    return CaptionTokenizer(mini.path(mini.tokenizer), mini.model.text_length)


@pytest.fixture(scope="module")
def vqgan(mini):
    return load_vqgan(mini.path(mini.vqgan))


def rows_of(card, split):
    return read_codes(Path(card.data_source(split)) / "codes.parquet", card.data.format)


def test_the_held_out_captions_are_in_no_training_data(card):
    train, held_out = rows_of(card, card.data.train), rows_of(card, card.data.held_out)
    captions = [row.caption for row in train + held_out]
    assert len(set(captions)) == len(captions)
    assert len(train) > 500
    assert len(held_out) >= 96
    words = {word for row in train for word in row.caption.split()}
    assert all(set(row.caption.split()) <= words for row in held_out)


def test_both_runs_share_their_clip_alone(mini):
    large = RunCard.load("emoji")
    assert mini.clip == large.clip
    assert not {mini.tokenizer.sha256, mini.vqgan.sha256} & {large.tokenizer.sha256, large.vqgan.sha256}


def test_words_combine_in_the_large_set():
    card = RunCard.load("emoji")
    captions = TrainingCaptions.of(card)
    assert len(captions.colours) == len(captions.backgrounds) == 8
    held_out = [row.caption for row in rows_of(card, card.data.held_out)]
    assert all(captions.novelty_of(caption).is_combination for caption in held_out[::40])


def test_captions_fit_and_have_no_unknown_words(card):
    tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length + 1)
    assert tokenizer.vocab_size <= card.model.text_vocab
    ids = tokenizer([row.caption for split in (card.data.train, card.data.held_out) for row in rows_of(card, split)])
    assert (ids[:, -1] == 1).all()
    assert (ids > 0).all()
    assert (ids != 2).all()


def test_pictures_that_are_decoded_are_encoded_almost_as_before(mini, vqgan):
    codes = torch.stack([torch.from_numpy(row.codes) for row in rows_of(mini, mini.data.train)[:100]])
    pictures = vqgan.decode(codes)
    again = vqgan.decode(vqgan.encode(pictures))
    error = (again.float() - pictures.float()).div(255).square().mean()
    assert -10 * error.log10() > 20  # decibels
    assert (vqgan.encode(pictures) == codes).float().mean() > 0.3


def test_the_young_model_is_young_but_better_than_chance(mini, tokenizer, vqgan):
    model = load_model(mini.path(mini.checkpoint), mini.model)
    train, held_out = rows_of(mini, mini.data.train), rows_of(mini, mini.data.held_out)
    drawn = draw_and_compare(model, choose_captions(train, 48), Gallery(train + held_out, vqgan), tokenizer, vqgan)
    assert 0 < drawn.exact < 0.4
    chance = torch.tensor(float(mini.model.image_vocab)).log()
    assert image_loss(model, held_out, tokenizer) < 0.5 * chance


def test_the_right_pictures_count_as_exact_and_wrong_ones_do_not(mini, tokenizer, vqgan, monkeypatch):
    data = rows_of(mini, mini.data.train)
    gallery, model, asked = Gallery(data, vqgan), DALLE(mini.model), [row.caption for row in data[:8]]
    for drawn_rows, expected in (data[:8], 1.0), (data[8:16], 0.0):
        codes = torch.stack([torch.from_numpy(row.codes) for row in drawn_rows])
        monkeypatch.setattr("dalle_lib.evaluation.generate", lambda *_, codes=codes, **__: codes[:, None])
        assert draw_and_compare(model, asked, gallery, tokenizer, vqgan).exact == expected


def test_models_of_pictures_that_are_elsewhere_or_large_are_not_examined(mini):
    elsewhere = mini.with_changes(
        data={**mini.data.model_dump(), "held_out": "hf://datasets/owner/codes", "revision": "0" * 40}
    )
    data = mini.data.model_dump()
    data["format"]["grid"] = 17
    large = mini.with_changes(model={**asdict(mini.model), "grid": 17}, data=data)
    for card in elsewhere, large:
        assert examine(card, DALLE(card.model)) is None


def test_the_assets_are_small_and_come_with_their_licences():
    files = [file for file in EMBEDDED.rglob("*") if file.is_file() and not {TEXT, RECORDING.parent} & {*file.parents}]
    assert sum(file.stat().st_size for file in files if file != ICONS) <= 25e6
    assert sum(file.stat().st_size for file in RECORDING.parent.iterdir()) <= 0.3e6
    assert ICONS.stat().st_size <= 1e6
    assert "Public Domain" in (EMBEDDED / "LICENSES" / "tango.txt").read_text()
    assert "SIL OPEN FONT LICENSE" in (EMBEDDED / "LICENSES" / "noto-emoji.txt").read_text()
    assert "UNICODE" in (EMBEDDED / "LICENSES" / "unicode-data.txt").read_text()


def test_readme_says_how_often_the_finished_model_is_right():
    right = json.loads((ROOT / "docs" / "emoji" / "table.json").read_text())["right"].values()
    readme = " ".join((ROOT / "README.md").read_text().split())
    for before, measure in ("sample are", "strict"), ("says less:", "nearest"):
        *first, last = (str(kind["first"][measure]) for kind in right)
        assert f"{before} {', '.join(first)} and {last} " in readme
