"""The embedded run's assets."""

from pathlib import Path

import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.evaluation import choose_rows, draw_and_compare, image_loss
from dalle_lib.model import DALLE
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.vqgan import PatchCodebook


def rows_of(card, split):
    return read_codes(Path(card.data_source(split)) / "codes.parquet", card.data.format)


def test_the_held_out_captions_and_pictures_are_in_no_training_data(emoji):
    train, held_out = rows_of(emoji, emoji.data.train), rows_of(emoji, emoji.data.held_out)
    captions = [row.caption for row in train + held_out]
    assert len(set(captions)) == len(captions)
    assert len(train) > 500
    assert len(held_out) >= 96
    words = {word for row in train for word in row.caption.split()}
    assert all(set(row.caption.split()) <= words for row in held_out)


def test_captions_fit_and_have_no_unknown_words(emoji):
    tokenizer = CaptionTokenizer(emoji.path(emoji.tokenizer), emoji.model.text_length + 1)
    assert tokenizer.vocab_size <= emoji.model.text_vocab
    ids = tokenizer([row.caption for split in ("train", "held_out") for row in rows_of(emoji, split)])
    assert (ids[:, -1] == 1).all()
    assert (ids > 0).all()
    assert (ids != 2).all()


def test_codes_are_the_nearest_patches(emoji):
    codebook = PatchCodebook.from_file(emoji.path(emoji.vqgan))
    codes = torch.stack([torch.from_numpy(row.codes) for row in rows_of(emoji, emoji.data.train)[:20]])
    pictures = codebook.decode(codes)
    assert pictures.shape == (20, 64, 64, 3)
    again = codebook.decode(codebook.encode(pictures))
    assert (again.int() - pictures.int()).abs().max() <= 1


def test_pictures_tile_row_by_row():
    patches = torch.arange(4).float()[:, None].expand(4, 192) / 4
    picture = PatchCodebook(patches).decode(torch.tensor([[0, 1, 2, 3]]))[0, :, :, 0]
    assert picture[0, 0] < picture[0, 8] < picture[8, 0] < picture[8, 8]
    assert len(picture[:8, :8].unique()) == 1


def test_the_young_model_is_young_but_better_than_chance(emoji):
    model = load_model(emoji.path(emoji.checkpoint), emoji.model)
    train, held_out = rows_of(emoji, emoji.data.train), rows_of(emoji, emoji.data.held_out)
    tokenizer = CaptionTokenizer(emoji.path(emoji.tokenizer), emoji.model.text_length)
    codebook = PatchCodebook.from_file(emoji.path(emoji.vqgan))
    drawn = draw_and_compare(model, choose_rows(train, 48), train + held_out, tokenizer, codebook)
    assert 0 < drawn.exact < 0.4
    chance = torch.tensor(float(emoji.model.image_vocab)).log()
    assert image_loss(model, held_out, tokenizer) < 0.5 * chance


def test_the_right_pictures_count_as_exact_and_wrong_ones_do_not(emoji, monkeypatch):
    data = rows_of(emoji, emoji.data.train)
    codebook = PatchCodebook.from_file(emoji.path(emoji.vqgan))
    tokenizer = CaptionTokenizer(emoji.path(emoji.tokenizer), emoji.model.text_length)
    model, asked, others = DALLE(emoji.model), data[:8], data[8:16]
    for drawn_rows, expected in (asked, 1.0), (others, 0.0):
        codes = torch.stack([torch.from_numpy(row.codes) for row in drawn_rows])
        monkeypatch.setattr("dalle_lib.evaluation.generate", lambda *_, codes=codes, **__: codes)
        assert draw_and_compare(model, asked, data, tokenizer, codebook).exact == expected


def test_licences_come_with_the_pictures(emoji):
    folder = emoji.path(emoji.vqgan).parent / "LICENSES"
    assert "SIL OPEN FONT LICENSE" in (folder / "noto-emoji.txt").read_text()
    assert "UNICODE" in (folder / "unicode-data.txt").read_text()
