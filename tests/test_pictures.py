"""What a notebook shows of drawings: knobs, rows as they are drawn, and pages of pictures."""

import pytest
import torch
from IPython.display import DisplayHandle

from dalle_lib.dashboard.pictures import Studio, best_of, gallery, live_rows
from dalle_lib.inference import TextToImage


@pytest.fixture(scope="module")
def draw() -> TextToImage:
    """The young model: its pictures have the fewest codes."""
    return TextToImage.from_run("emoji-mini", device="cpu")


def test_the_knobs_draw_what_they_say(draw):
    studio = Studio(draw, "frog", candidates=4, seed=3)
    studio.knobs["top_k"].value = 8
    studio.knobs["guidance"].value = 1.0
    studio.button.click()
    assert "button that draws" in studio._repr_mimebundle_()["text/html"], "a saved page says what was here"
    (drawn,) = studio.drawings
    expected = draw("frog", candidates=4, best=4, top_k=8, guidance=1.0, seed=3)
    assert torch.equal(drawn.candidates, expected.candidates)
    assert not studio.button.disabled


def test_the_last_rows_of_each_prompt_stay_on_the_page(draw, monkeypatch):
    places: dict[str, list[str]] = {}
    monkeypatch.setattr(DisplayHandle, "display", lambda self, page: places.update({self.display_id: [page.data]}))
    monkeypatch.setattr(DisplayHandle, "update", lambda self, page: places[self.display_id].append(page.data))
    draw(["frog", "<b>cat</b>", "cat", "cat"], candidates=2, best=1, progress=live_rows(draw))
    assert len(places) == 4
    for pages, prompt in zip(places.values(), ["frog", "&lt;b&gt;cat&lt;/b&gt;", "cat", "cat"], strict=True):
        assert len(set(pages)) == draw.model.config.grid, "each row of codes changes what is shown"
        assert f"{prompt}: 100% of 2 candidates" in pages[-1]
        assert "data:image/png;base64," in pages[-1]
        assert ", unfinished'" in pages[-2]
        assert "unfinished" not in pages[-1]


def test_pages_hold_their_pictures_and_escape_prompts(draw):
    drawing = draw("<b>frog</b>", candidates=2, best=1, seed=0)
    for page in best_of(drawing).data, gallery([drawing]).data:
        assert "data:image/png;base64," in page
        assert "&lt;b&gt;frog" in page
        assert "<b>frog" not in page
        assert "<img alt='&lt;b&gt;frog" in page, "the prompt stands for a picture that is not seen"
        assert "alt=''" not in page
