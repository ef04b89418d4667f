"""`--preset paper` is the paper's run in every field, and what is unlike its data is refused."""

from pathlib import Path

import pytest
from paper_like import data_of, tokenizer_in
from tokenizers import Tokenizer, models

from dalle_lib.files import sha256_of
from dalle_lib.run import RunCard, new_run

PAPER = {
    "model": {
        **{"dim": 1024, "depth": 64, "heads": 16, "dim_head": 64, "text_length": 256, "text_vocab": 32_100},
        **{"image_vocab": 8192, "grid": 32},
    },
    "optimizer": {
        **{"lr": 2.5e-3, "warmup_epochs": 3125, "total_epochs": 31_250, "betas": (0.9, 0.96), "eps": 1e-6, "bits": 8},
        **{"weight_decay": 0.045, "max_grad_norm": 4.0, "max_weight_norm": 10_000.0},
    },
    "averaging": {
        **{"target_batch_size": 4096, "eight_bit_from": 2**16, "delayed": "step", "strategy": "gradients"},
        **{"rule": "mean", "reducers": "all"},
    },
    "recipe": {"code_corruption": 0.0, "caption_dropout": 0.0},
}
"""The numbers of arXiv:2207.03481: its section on the model, its appendix, and its published code."""


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    return tokenizer_in(tmp_path)


def test_the_preset_is_the_papers_run_in_every_field(tokenizer, tmp_path):
    new_run(tmp_path / "run", data_of(tmp_path / "data"), preset="paper", tokenizer=tokenizer)
    card = RunCard.load(tmp_path / "run")
    told = card.model_dump()
    for part, fields in PAPER.items():
        assert {name: told[part][name] for name in fields} == fields
    assert vars(card.data.filters) == {"min_caption": 3, "max_aspect": 2, "nsfw": ("UNLIKELY",)}
    assert (card.data.format.grid, card.data.format.codebook_size) == (32, 8192)
    assert card.optimizer.warmup_epochs * 10 == card.optimizer.total_epochs
    assert card.tokenizer.sha256 == sha256_of(tokenizer)


@pytest.mark.parametrize(
    ("data", "own_tokenizer", "why"),
    [
        ({"grid": 16}, False, "32x32 codes among 8,192, but the data have 16x16 among 8,192"),
        ({"codebook_size": 1024}, False, "but the data have 32x32 among 1,024"),
        ({"tells": False}, False, "the filters need width, height, nsfw of each picture"),
        ({}, True, "has 32,100 ids, but this one has 3"),
    ],
)
def test_what_is_not_like_the_papers_data_is_refused_and_leaves_nothing(tokenizer, tmp_path, data, own_tokenizer, why):
    if own_tokenizer:
        Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c")).save(str(tokenizer))
    source = data_of(tmp_path / "data", **data)
    with pytest.raises(ValueError, match=why):
        new_run(tmp_path / "run", source, preset="paper", tokenizer=tokenizer)
    assert not (tmp_path / "run").exists()


def test_the_papers_tokenizer_comes_from_the_hub(tokenizer, tmp_path, hub):
    hub.add("google-t5/t5-small", {"tokenizer.json": tokenizer.read_bytes()})
    card = new_run(tmp_path / "run", data_of(tmp_path / "data"), preset="paper")
    assert card.tokenizer.sha256 == sha256_of(tokenizer)
    with pytest.raises(ValueError, match=r"expected tokenizer\.json of 'none/such' on the Hub"):
        new_run(tmp_path / "other", tmp_path / "data", preset="paper", tokenizer="none/such")


def test_large_pictures_may_have_a_small_model(tmp_path):
    card = new_run(tmp_path / "run", data_of(tmp_path / "data", tells=False), preset="small")
    assert (card.model.dim, card.model.depth, card.model.grid, card.model.image_vocab) == (192, 5, 32, 8192)
