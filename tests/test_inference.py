"""Drawing with the embedded models: through CLIP to files.

Where it does not matter how well a model draws, it is the young one, whose pictures have a quarter of the codes.
"""

import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from dalle_lib.evaluation import Gallery, choose_captions
from dalle_lib.inference import PRESETS, Progress, Settings, TextToImage, downloads
from dalle_lib.inference.choosing import different
from dalle_lib.inference.fetching import downloads_of
from dalle_lib.inference.settings import SIDE_BY_SIDE, how_many
from dalle_lib.inference.text_to_image import CACHE_SHARE
from dalle_lib.machine import few_threads
from dalle_lib.model import cache_bytes, generate
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run import RunCard
from dalle_lib.streaming import read_codes

PROMPT = "penguin on a yellow background"
BOLD = {"top_k": 0, "temperature": 4.0, "guidance": 1.0}
"""Settings at which the candidates differ: at the usual ones the finished model repeats one picture of a prompt."""


@pytest.fixture(scope="module")
def card() -> RunCard:
    return RunCard.load("emoji")


@pytest.fixture(scope="module")
def draw() -> TextToImage:
    return TextToImage.from_run("emoji", device="cpu")


@pytest.fixture(scope="module")
def draw_small() -> TextToImage:
    return TextToImage.from_run("emoji-mini", device="cpu")


@pytest.fixture(scope="module")
def drawing(draw_small):
    return draw_small(PROMPT, candidates=20, best=3, seed=1, **BOLD)


@pytest.fixture(scope="module")
def rows(card):
    return [
        row
        for split in (card.data.train, card.data.held_out)
        for row in read_codes(f"{card.data_source(split)}/codes.parquet", card.data.format)
    ]


def test_it_draws_what_its_training_captions_say(draw, card, rows):
    seen = read_codes(f"{card.data_source(card.data.train)}/codes.parquet", card.data.format)
    captions = choose_captions(seen, 4, seed=1)
    firsts = torch.cat([drawing.candidates for drawing in draw(captions, candidates=1, best=1, seed=0)])
    among = [row for place, row in enumerate(rows) if place % 32 == 0 or row.caption in captions]
    found = Gallery(among, draw.vqgan).nearest(firsts)
    assert sum(a == b for a, b in zip(found, captions, strict=True)) >= 3, list(zip(captions, found, strict=True))


def test_the_best_are_those_that_clip_scores_highest_beyond_its_noise(drawing):
    assert drawing.candidates.shape == (20, 64, 64, 3)
    assert len(drawing.candidates.flatten(1).unique(dim=0)) > 4
    assert 0 < drawing.noise < 0.1
    assert drawing.scores[drawing.best[0]] > drawing.scores.max() - drawing.noise
    kept = different(drawing.scores, drawing.candidates)
    assert {choice.number for choice in drawing.choices} <= {choice.number for choice in kept}
    left_out = [choice.number for choice in kept if choice not in drawing.choices]
    assert (drawing.scores[drawing.best] > drawing.scores[left_out].max() - drawing.noise).all()
    assert [picture.size for picture in drawing.pictures] == [(64, 64)] * 3
    assert all(seconds > 0 for seconds in drawing.seconds.values())


def test_a_picture_that_nearly_all_candidates_are_is_kept_once_and_comes_first(draw):
    drawing = draw(PROMPT, candidates=16, best=4, top_k=0, seed=0)
    count = drawing.choices[0].count
    assert 14 <= count == max(choice.count for choice in drawing.choices)
    assert sum(choice.count for choice in drawing.choices) == 16
    assert repr(drawing).startswith(f"<Drawing of {PROMPT!r} by emoji, seed 0; 16 candidates, best x{count} · 0.")


def test_a_drawing_shows_itself(drawing, draw_small):
    assert "\n" not in repr(drawing)
    shown = Image.open(io.BytesIO(drawing._repr_png_()))
    assert shown.size == drawing.grid().size == (3 * 128 + 2 * 4, 128 + 18)
    corner = drawing.grid(side=64).crop((2 * 68, 0, 2 * 68 + 64, 64))
    assert corner.tobytes() == drawing.pictures[2].tobytes()
    lone = draw_small("zeppelin", candidates=1, best=1, seed=0)
    assert "no zeppelin in its training data" in repr(lone)
    assert lone.noise is None, "there was nothing to compare"


def test_a_seed_gives_the_same_pictures_however_many_are_drawn(draw_small, drawing, monkeypatch):
    fewer = draw_small(PROMPT, candidates=6, best=1, seed=1, **BOLD)
    assert torch.equal(fewer.codes, drawing.codes[:6])
    other = draw_small(PROMPT, candidates=6, best=1, seed=2, **BOLD)
    assert not torch.equal(other.codes, drawing.codes[:6])
    assert draw_small.side_by_side(10_000) == SIDE_BY_SIDE
    each, of_text = cache_bytes(draw_small.model.config, torch.float32)
    monkeypatch.setattr(
        "dalle_lib.inference.text_to_image.free_memory", lambda _: int((8.9 * each + of_text) / CACHE_SHARE)
    )
    assert draw_small.side_by_side(20) == 8
    assert draw_small.side_by_side(20, guidance=1.5) == 4
    assert torch.equal(draw_small(PROMPT, candidates=20, best=1, seed=1, **BOLD).codes, drawing.codes)


def test_the_codes_are_those_that_the_model_draws(draw_small, drawing):
    with few_threads(draw_small.model):
        codes = generate(
            draw_small.model, draw_small.tokenizer([PROMPT]), samples=20, temperature=BOLD["temperature"], seed=1
        )[0]
    assert torch.equal(codes, drawing.codes)
    assert (draw_small.vqgan.decode(codes, chunk=5).int() - drawing.candidates.int()).abs().max() <= 1


def test_without_a_seed_one_is_made_up_and_told(draw_small):
    first, second = (draw_small("pizza", candidates=1, best=1, **BOLD) for _ in range(2))
    assert first.settings.seed != second.settings.seed
    again = draw_small("pizza", candidates=1, best=1, seed=first.settings.seed, **BOLD)
    assert torch.equal(again.codes, first.codes)


def test_settings_left_open_are_those_of_the_run_and_others_stay():
    left_open = Settings(top_k=8).completed(1.5)
    assert (left_open.top_k, left_open.guidance) == (8, 1.5)
    assert left_open.seed is not None
    assert Settings(guidance=0.0, seed=0).completed(1.5) == Settings(guidance=0.0, seed=0)


def test_presets_draw_as_the_paper_did(draw_small):
    by_k, by_p = (
        draw_small("frog", candidates=2, best=1, seed=7, preset=name) for name in ("paper-top-k", "paper-top-p")
    )
    assert (by_k.settings.top_k, by_k.settings.top_p) == (256, 1.0)
    assert (by_p.settings.top_k, by_p.settings.top_p) == (0, 0.75)
    assert torch.equal(by_p.codes, draw_small("frog", candidates=2, best=1, seed=7, top_k=0, top_p=0.75).codes)
    assert [how_many(None, name) for name in (None, *PRESETS)] == [32, 128, 128]
    assert how_many(5, "paper-top-p") == 5
    assert Settings(top_k=256).with_preset("paper-top-p") == Settings(top_k=0, top_p=0.75)
    with pytest.raises(ValueError, match=r"paper-top-p means top_k=0, but got top_k=8 too"):
        draw_small("frog", preset="paper-top-p", top_k=8)
    with pytest.raises(ValueError, match=r"expected a preset among paper-top-k, paper-top-p, but got 'paper'"):
        draw_small("frog", preset="paper")


def test_a_small_model_draws_on_one_thread_and_gives_the_others_back(draw_small, monkeypatch):
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        draw_small("frog", candidates=1, best=1, seed=0, progress=lambda _: seen.append(torch.get_num_threads()))
        with pytest.raises(ZeroDivisionError):
            draw_small("frog", candidates=1, best=1, seed=0, progress=lambda _: 1 / 0)
        assert torch.get_num_threads() == 3
        assert set(seen) == {1}
        monkeypatch.setattr("dalle_lib.machine.SMALL_PARAMETERS", 1)  # as if this were a large model
        draw_small("frog", candidates=1, best=1, seed=0, progress=lambda _: seen.append(torch.get_num_threads()))
        assert set(seen) == {1, 3}
    finally:
        torch.set_num_threads(before)


def test_pngs_carry_what_is_needed_to_draw_them_again(drawing, tmp_path):
    files = drawing.save(tmp_path)
    with Image.open(files[0]) as picture:
        about = picture.text
    assert about["prompt"] == PROMPT
    assert about["model"] == "emoji-mini"
    assert about["seed"] == "1"
    assert about["candidate"] == f"{drawing.best[0] + 1} of 20"
    assert float(about["guidance"]) == drawing.settings.guidance
    assert [file.name for file in files] == [f"penguin-on-a-yellow-background-1-{end}.png" for end in (1, 2, 3, "all")]
    with Image.open(files[-1]) as sheet:
        assert sheet.size == (8 * 132, 3 * 132)
        fourth_of_second_row = sheet.crop((3 * 132, 132, 3 * 132 + 128, 132 + 128)).resize((64, 64))
        drawn = torch.from_numpy(np.array(fourth_of_second_row)).float() - drawing.candidates[11]
    assert drawn.abs().mean() < 8


def test_words_that_the_model_never_saw_are_named(draw, caplog):
    assert draw.unknown_words("Red Apple on a pink background") == []
    odd = draw("zeppelin beneath a frog", candidates=1, best=1, seed=0)
    assert odd.settings.guidance == draw.guidance
    assert odd.unknown_words == ["zeppelin", "beneath"]
    assert "zeppelin" in caplog.text


def test_progress_comes_after_each_row_and_ends_at_one(draw_small, monkeypatch):
    seen: list[Progress] = []
    monkeypatch.setattr(draw_small, "side_by_side", lambda *_: 3)
    draw_small("frog", candidates=5, best=1, seed=0, progress=seen.append)
    assert [(p.drawn, *p.codes.shape) for p in seen] == [
        (first, count, 8 * row) for first, count in ((0, 3), (3, 2)) for row in range(1, 9)
    ]
    assert [p.share for p in seen] == sorted(p.share for p in seen)
    assert seen[-1].share == pytest.approx(1.0)
    half = draw_small.preview(seen[3].codes)
    assert (half[:, 32:] == 255).all()
    assert not (half[:, :32] == 255).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": 2, "best": 0}, "best and candidates to be whole numbers of at least 1"),
        ({"candidates": 0}, "best and candidates to be whole numbers of at least 1"),
        ({"temperature": 0.0}, "temperature > 0"),
        ({"top_p": 1.5}, "top_p <= 1"),
    ],
)
def test_settings_out_of_range_are_refused(draw_small, settings, message):
    with pytest.raises(ValueError, match=message):
        draw_small("frog", **settings)


def test_an_empty_prompt_is_refused(draw_small):
    with pytest.raises(ValueError, match="at least one word"):
        draw_small(["frog", " "])


def test_a_run_in_a_folder_draws_the_same_and_its_card_is_read_once(mini, drawing, tmp_path, monkeypatch):
    read, load = [], RunCard.load
    monkeypatch.setattr(RunCard, "load", lambda run: read.append(run) or load(run))
    copy = TextToImage.from_run(mini.save(tmp_path / "copy"), device="cpu")
    assert read == [tmp_path / "copy"]
    assert torch.equal(copy(PROMPT, candidates=6, best=1, seed=1, **BOLD).codes, drawing.codes[:6])
    assert copy.captions.known_words


def test_a_run_on_the_hub_is_announced_and_draws_the_same(mini, drawing, hub, tmp_path):
    hub.add("owner/run", mini.save(tmp_path / "run"))
    sizes = {found.part: found.bytes for found in downloads("owner/run")}
    assert sizes.keys() == {"model", "tokenizer", "vqgan", "clip"}
    assert sizes["vqgan"] == mini.path(mini.vqgan).stat().st_size
    fetched = TextToImage.from_run("owner/run", device="cpu")
    assert torch.equal(fetched(PROMPT, candidates=6, best=1, seed=1, **BOLD).codes, drawing.codes[:6])


def test_the_sizes_of_a_private_run_are_asked_with_its_hub_token(mini, hub, tmp_path):
    hub.add("owner/secret", mini.save(tmp_path / "run"), private=True)
    hub.users["hf_ofItsOrganiser"] = User("owner")
    private = RunCard.load("owner/secret", "hf_ofItsOrganiser")
    sizes = {found.part: found.bytes for found in downloads_of(private)}
    assert sizes["model"] == mini.path(mini.checkpoint).stat().st_size
    assert sizes.keys() == {"model", "tokenizer", "vqgan", "clip"}


def test_a_run_without_its_clip_is_refused(mini, tmp_path):
    folder = mini.save(tmp_path / "run")
    shutil.rmtree(folder / "clip")
    with pytest.raises(ValueError, match="the folder 'clip', is not beside its card"):
        TextToImage.from_run(folder)


def test_a_run_without_a_checkpoint_is_refused(mini, tmp_path):
    folder = mini.with_changes(checkpoint=None).save(tmp_path / "new")
    with pytest.raises(ValueError, match="no checkpoint"):
        TextToImage.from_run(folder)
