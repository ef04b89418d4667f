"""CLIP as a ranker: the embedded one against transformers' own forward pass, and what it can tell apart."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel

from dalle_lib.files import BrokenFile
from dalle_lib.rerank import CLIPRanker
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.vqgan import load_vqgan

CAPTIONS = ["penguin", "green frog on a pink background", "pizza"]

TOKENIZER, WEIGHTS = "tokenizer_config.json", "model.safetensors"


@pytest.fixture(scope="module")
def card() -> RunCard:
    return RunCard.load("emoji")


@pytest.fixture(scope="module")
def ranker(card) -> CLIPRanker:
    return CLIPRanker(card.clip_source())


@pytest.fixture(scope="module")
def data(card):
    vqgan = load_vqgan(card.path(card.vqgan))
    rows = read_codes(f"{card.data_source(card.data.train)}/codes.parquet", card.data.format)
    plain = [row for row in rows if " on a " not in row.caption][:300]
    return [row.caption for row in plain], vqgan.decode(torch.stack([torch.from_numpy(row.codes) for row in plain]))


def test_scores_are_the_cosines_of_transformers(ranker, card, data):
    _, pictures = data
    model = CLIPModel.from_pretrained(card.clip_source(), dtype=torch.float32).eval()
    ids = ranker.tokenizer(CAPTIONS, padding=True, return_tensors="pt")
    images = [Image.fromarray(picture.numpy()) for picture in pictures[:5]]
    pixels = ranker.processor(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        output = model(ids["input_ids"], pixels, attention_mask=ids["attention_mask"])
    expected = output.logits_per_text / model.logit_scale.exp()
    for caption, row in zip(CAPTIONS, expected, strict=True):
        torch.testing.assert_close(ranker.score(caption, pictures[:5], chunk=2), row, atol=1e-5, rtol=1e-4)


def test_a_caption_means_the_same_beside_longer_ones_and_its_last_word_counts(ranker):
    together = ranker.embed_captions(CAPTIONS)
    for caption, row in zip(CAPTIONS, together, strict=True):
        torch.testing.assert_close(ranker.embed_captions([caption])[0], row, atol=1e-5, rtol=1e-4)
    a, b = ranker.embed_captions(["green frog", "green pizza"])
    assert a @ b < 0.95


def test_a_caption_that_is_too_long_is_cut(ranker):
    assert torch.isfinite(ranker.embed_captions(["frog " * 100])).all()


def test_it_knows_which_picture_a_caption_is_of(ranker, data):
    captions, pictures = data
    similarity = ranker.embed_captions(captions) @ ranker.embed_pictures(pictures).T
    right = similarity.argmax(1) == torch.arange(len(captions))
    assert right.float().mean() > 0.8


def test_it_reads_captions_as_the_run_does(ranker, card):
    tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
    theirs = ranker.tokenizer(CAPTIONS, padding="max_length", max_length=card.model.text_length, return_tensors="pt")
    assert torch.equal(theirs["input_ids"], tokenizer(CAPTIONS))
    assert ranker.model.config.text_config.eos_token_id == ranker.tokenizer.eos_token_id == 1


def test_code_beside_a_clip_is_not_run(card, tmp_path, monkeypatch):
    clip = tmp_path / "clip"
    shutil.copytree(card.data_source(card.clip), clip)
    config, told = json.loads((clip / "config.json").read_text()), json.loads((clip / TOKENIZER).read_text())
    (clip / "config.json").write_text(json.dumps(config | {"model_type": "another"}))
    told = {name: value for name, value in told.items() if name not in ("tokenizer_class", "backend")}
    (clip / TOKENIZER).write_text(json.dumps(told | {"auto_map": {"AutoTokenizer": ["run.Run", "run.Run"]}}))
    (clip / "run.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(BrokenFile, match="cannot be read as a CLIP"):
        CLIPRanker(str(clip))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("preprocessor_config.json", {"size": {"shortest_edge": 12_000}}),
        ("preprocessor_config.json", {"crop_size": {"height": 64, "width": 12_000}}),
        ("config.json", {"vision_config": {"image_size": 12_000}}),
    ],
)
def test_a_clip_that_looks_at_huge_pictures_is_refused_before_it_is_loaded(card, file, changed, tmp_path, monkeypatch):
    clip = tmp_path / "clip"
    shutil.copytree(card.data_source(card.clip), clip)
    (clip / file).write_text(json.dumps(json.loads((clip / file).read_text()) | changed))
    monkeypatch.setattr(CLIPModel, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(BrokenFile, match=r"cannot be read as a CLIP.*expected sizes of at most 1024 pixels, .*12000"):
        CLIPRanker(clip)


def copied_clip(card, folder, weights=lambda weights: weights, **changed) -> Path:
    """Return a copy of the embedded CLIP, with changed weights and lines of its config.json."""
    clip = folder / "clip"
    shutil.copytree(card.data_source(card.clip), clip)
    (clip / "config.json").write_text(json.dumps(json.loads((clip / "config.json").read_text()) | changed))
    save_file(weights(load_file(clip / WEIGHTS)), clip / WEIGHTS, {"format": "pt"})
    return clip


@pytest.mark.parametrize("layers", [10**7, -1])
def test_a_clip_whose_config_describes_more_than_its_files_hold_is_refused_before_it_is_made(card, layers, tmp_path):
    part = json.loads((Path(card.data_source(card.clip)) / "config.json").read_text())["text_config"]
    clip = copied_clip(card, tmp_path, text_config={**part, "num_hidden_layers": layers})
    with pytest.raises(BrokenFile, match=r"clip cannot be read as a CLIP.*describes [\w ,]+ weights"):
        CLIPRanker(clip)


def test_a_clip_that_lacks_weights_chooses_by_chance_and_is_refused(card, tmp_path):
    clip = copied_clip(card, tmp_path, lambda weights: {name: weights[name] for name in sorted(weights)[5:]})
    with pytest.raises(BrokenFile, match="it lacks 5, such as "):
        CLIPRanker(clip)


def test_names_in_the_files_of_a_clip_reach_no_terminal(card, tmp_path, capfd):
    name = "\x1b]0;owned\x07red"
    clip = copied_clip(card, tmp_path, lambda weights: weights | {name: torch.zeros(1)}, model_type=name)
    CLIPRanker(clip)
    assert capfd.readouterr() == ("", "")
