"""What a run knows of its training captions: what of a prompt is new, what is nearest, how a caption is written."""

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch

from dalle_lib.cli.generate import describe_drawing
from dalle_lib.dashboard.pictures import best_of
from dalle_lib.inference import Novelty, TextToImage, TrainingCaptions
from dalle_lib.inference.captions import WORDS
from dalle_lib.model import DALLE
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.streaming import read_codes


@pytest.fixture(scope="module")
def card() -> RunCard:
    return RunCard.load("emoji")


@pytest.fixture(scope="module")
def captions(card) -> TrainingCaptions:
    return TrainingCaptions.of(card)


@pytest.fixture(scope="module")
def draw(card) -> TextToImage:
    """The run's parts around a model of two layers, as it does not matter here how well it draws."""
    torch.manual_seed(0)
    model = DALLE(replace(card.model, dim=32, depth=2, heads=1)).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            parameter.fill_(5)  # with fresh weights, it would draw the same whatever the caption
    return TextToImage.from_card(card, model, "cpu")


@pytest.mark.parametrize(
    ("prompt", "words", "phrases"),
    [
        ("red cat on a teal background", [], ["teal background"]),
        ("an orange", [], ["orange"]),
        ("a penguin on the golden background", ["golden"], []),
        ("pink penguin", [], ["pink penguin"]),
        ("cat and dog", [], ["cat and dog"]),
        ("zeppelin beneath a frog", ["zeppelin", "beneath"], []),
        ("two cats", ["two"], []),
        ("dark red cat on a teal background", ["dark red"], ["teal background"]),
    ],
)
def test_what_the_training_data_lack_is_named_without_articles(captions, prompt, words, phrases):
    novelty = captions.novelty_of(prompt)
    assert (novelty.words, novelty.phrases, novelty.is_combination) == (words, phrases, False)
    told = [", ".join(f"no {word}" for word in words) + " in its training data"] if words else []
    told += [f"no training caption is about {', '.join(map(repr, phrases))}"] if phrases else []
    assert str(novelty).startswith("; ".join(told))
    assert "; the nearest captions" in str(novelty)
    assert 1 <= len(novelty.nearest) <= 3
    assert set(novelty.nearest) <= set(captions.captions)


def test_one_known_thing_is_no_combination_and_a_word_is_taken_for_no_other(captions):
    for thing in captions.things:
        assert captions.novelty_of(thing) == Novelty()
    assert "kite" not in str(captions.novelty_of("kitten"))


def test_a_word_that_captions_hold_is_never_said_to_be_missing(captions):
    for word in "on", "yellow", "background":
        assert word in captions.known_words
        assert str(captions.novelty_of(word)).startswith(f"no training caption is about '{word}'")


def test_a_thing_that_captions_give_no_colour_is_told_to_stay_as_it_is(captions):
    told = str(captions.novelty_of("purple elephant"))
    assert "a new combination" in told
    assert "gives 'elephant' a colour, so it may stay as it is" in told
    assert "gives" not in str(captions.novelty_of("yellow frog on a teal background"))
    assert not captions.novelty_of("yellow penguin").own_colour, "only its throat is yellow"
    assert captions.as_written("frog in front of a blue background") == "frog on a blue background"


def test_a_colour_that_only_backgrounds_have_is_told(captions):
    told = str(captions.novelty_of("pink frog on a blue background"))
    assert told.startswith("no training caption is about 'pink frog'; pink is only a background there; the nearest")
    assert "only a background" not in str(captions.novelty_of("pink on a blue background"))


def test_the_nearest_captions_share_what_is_rare_and_forgive_a_slip(captions):
    assert captions.novelty_of("red cat on a teal background").nearest[0] == "red cat on a blue background"
    assert captions.novelty_of("pengiun").nearest[0] == "penguin"
    assert str(captions.novelty_of("pengiun")) == (
        f"no pengiun in its training data; the nearest captions that it knows: "
        f"{', '.join(captions.novelty_of('pengiun').nearest)}"
    )


@pytest.mark.parametrize("run", EMBEDDED_RUNS)
def test_training_captions_are_known_and_held_out_ones_are_new_combinations(run):
    card = RunCard.load(run)
    captions = TrainingCaptions.of(card)
    for caption in captions.captions[::29]:
        assert captions.novelty_of(caption) == Novelty()
        assert str(captions.novelty_of(caption)) == ""
        assert captions.as_written(caption) == caption
    for row in read_codes(f"{card.data_source(card.data.held_out)}/codes.parquet")[::29]:
        novelty = captions.novelty_of(row.caption)
        assert (novelty.words, novelty.phrases, novelty.is_combination) == ([], [], True), row.caption
        assert captions.as_written(row.caption) == row.caption


@pytest.mark.parametrize(
    ("prompt", "caption"),
    [
        ("A penguin.", "penguin"),
        ("the Penguin on the yellow background", "penguin on a yellow background"),
        ("penguin on yellow", "penguin on a yellow background"),
        ("a penguin with green background", "penguin on a green background"),
        ("penguin on a white background", "penguin"),
        ("cat on a gray background?", "cat on a grey background"),
        ("violet frog", "purple frog"),
        ("hotdog on a blue background", "hot dog on a blue background"),
        ("a teddy-bear", "teddy bear"),
        ("Red-Apple, black background", "red apple on a black background"),
        ("penguin, yellow background", "penguin on a yellow background"),
        ("A penguin, with a yellow background", "penguin on a yellow background"),
        ("penguin yellow background", "penguin on a yellow background"),
        ("cat against a blue background", "cat on a blue background"),
        ("cat with a golden background", "cat on a golden background"),
        ("cat, golden background", "cat, golden background"),
        ("penguin, yellow", "penguin, yellow"),
        ("green strawberries, on a pink background", "green strawberry on a pink background"),
        ("tomatoes", "tomato"),
        ("an apple", "red apple"),
        ("hearts on pink", "red heart on a pink background"),
        ("green apple", "green apple"),
        ("blue apple", "blue apple"),
        ("wolves", "wolf"),
        ("kitchen knives", "kitchen knife"),
        ("a blueberry", "blueberries"),
        ("grapes", "grapes"),
        ("light blue cat", "blue cat"),
        ("light-blue cat on a darkgreen background", "blue cat on a green background"),
        ("deep violet frog", "purple frog"),
        ("bright cat", "bright cat"),
        ("cup with straw", "cup with straw"),
        ("A a a.", "a a a"),
        ("nest with eggs on a pink background", "nest with eggs on a pink background"),
    ],
)
def test_a_prompt_is_read_as_the_training_captions_would_say_it(captions, prompt, caption):
    assert captions.as_written(prompt) == caption


def test_a_thing_in_the_colour_that_it_has_anyway_is_no_new_combination(captions, draw):
    for prompt in "red tomatoes", "a yellow banana", "red tomato on a blue background":
        novelty = captions.novelty_of(prompt)
        assert (novelty.words, novelty.phrases, novelty.is_combination) == ([], [], False)
        assert novelty.own_colour == captions.as_written(prompt).removesuffix(" on a blue background")
    assert captions.novelty_of("red tomato on a pink background").is_combination, "no caption has that background"
    drawing = draw("red tomato", candidates=1, best=1, seed=3)
    assert drawing.caption == "red tomato", "the model draws it in that colour: a lemon is orange, a yellow one yellow"
    told = "no training caption says 'red tomato', which has about that hue by itself"
    assert str(drawing.novelty) == told
    assert told in describe_drawing(drawing, [Path("a"), Path("b")])
    assert captions.novelty_of("teal tomato") == Novelty()


def test_a_shade_is_told_and_the_drawing_says_how_its_prompt_was_read(captions, draw):
    assert str(captions.novelty_of("light blue cat")) == "no light blue in its training data"
    drawing = draw("light blue cats", candidates=1, best=1, seed=3)
    assert drawing.unknown_words == ["light blue"]
    told = "read as 'blue cat'"
    assert drawing.reading == told
    assert told in repr(drawing)
    assert describe_drawing(drawing, [Path("a"), Path("b")]).startswith(f"'light blue cats', {told}, seed 3")
    assert f"<b>light blue cats</b>, {escape(told)}, seed 3" in best_of(drawing).data
    plain = draw("A blue cat!", candidates=1, best=1, seed=3)
    assert plain.reading == ""
    assert "read as" not in repr(plain) + describe_drawing(plain, [Path("a"), Path("b")]) + best_of(plain).data


def test_every_training_caption_is_read_as_it_is_and_with_articles(captions):
    for caption in captions.captions:
        assert captions.as_written(caption) == caption
        assert captions.as_written(f"the {caption.replace(' on a ', ' on the ')}") == caption


def test_the_model_and_clip_read_that_caption_and_the_drawing_says_what_is_new(draw, caplog):
    asked, meant = (
        draw(p, candidates=2, best=1, seed=3) for p in ("a Penguin on yellow", "penguin on a yellow background")
    )
    assert asked.caption == meant.caption == meant.prompt
    assert torch.equal(asked.codes, meant.codes)
    assert torch.equal(asked.scores, meant.scores)
    other = draw("penguin on a pink background", candidates=2, best=1, seed=3)
    assert not torch.equal(other.codes, meant.codes)
    assert not torch.equal(other.scores, meant.scores)
    assert caplog.text == ""
    new = draw("penguin on a teal background", candidates=1, best=1, seed=3)
    assert new.novelty.phrases == ["teal background"]
    assert "no training caption is about 'teal background'; the nearest captions that it knows:" in caplog.text
    caplog.clear()
    assert draw("polar bear on a black background", candidates=1, best=1, seed=3).novelty.is_combination
    assert caplog.text == "", "unseen combinations are what models are tested on: they are told, without a warning"


def test_a_run_without_a_list_of_words_names_unknown_words_alone_and_reads_prompts_as_they_are(card, tmp_path):
    folder = card.save(tmp_path / "run")
    assert json.loads((folder / card.data.train / WORDS).read_text())["backgrounds"][:4] == [
        "yellow",
        "pink",
        "black",
        "blue",
    ]
    (folder / card.data.train / WORDS).unlink()
    stranger = RunCard.load(folder).with_changes(pins={})
    assert stranger.fingerprint == card.fingerprint
    captions = TrainingCaptions.of(stranger)
    assert captions.novelty_of("a zeppelin on a teal background") == Novelty(["zeppelin"])
    assert str(captions.novelty_of("a zeppelin")) == "no zeppelin in its training data"
    assert captions.as_written("A penguin") == "A penguin"


def test_captions_on_the_hub_are_not_fetched(card):
    elsewhere = card.with_changes(
        data={**card.data.model_dump(), "train": "hf://datasets/owner/codes", "revision": "0" * 40}
    )
    assert TrainingCaptions.of(elsewhere) is None
