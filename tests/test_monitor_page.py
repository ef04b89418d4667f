"""The page of a run's checkpoints says what there is, and what strangers wrote does nothing in it."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from PIL import Image

from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.evaluating import Figures, as_json
from dalle_lib.monitor.judging import Judged
from dalle_lib.monitor.page import write_page
from dalle_lib.monitor.published import history_of, status_of
from dalle_lib.organizing.model_page import PageFacts, as_code, model_page

HOSTILE = "eve | <script>x</script> `[a](http://evil.com)` ![b](http://evil.com) \n# www.evil.com"
NOW = 1_790_000_000.0
JUDGED = Judged(captions=64, among=742, exact=0.25, object=0.5, colour=0.75, background=1.0, rank=0.344,
                rank_half_width=0.092, rank_ceiling=0.99, rank_chance=0.035, ranked=164)  # fmt: skip


@pytest.fixture
def database(tmp_path):
    opened = MonitorDatabase(tmp_path / "monitor.sqlite")
    yield opened
    opened.close()


def fill(database, user):
    with database.writing():
        database.insert("starts", peer="Qm", started=NOW, user=user, team="", last_seen=NOW, name="eve",
                        epoch=30, loss=3.0, hardware="", kit="")  # fmt: skip
        database.insert("credits", hour=1, user=user, peer="Qm", samples=9, compute_s=7200, present_s=1, counted=9)
        for epoch in range(1, 31):
            database.insert("epochs", epoch=epoch, ended=NOW, seconds=9.0, peers=3, loss=9 / epoch)
        for epoch, drawn in (10, None), (20, JUDGED):
            figures = Figures(held_out_loss=60 / epoch, half_width=0.125, rows=164, drawn=drawn)
            database.insert("checkpoints", epoch=epoch, made=NOW, sha256="", bytes=1, figures=as_json(figures))


def test_the_page_has_figures_plot_and_contributors_and_each_picture_that_it_shows(mini, database, tmp_path):
    fill(database, "ada")
    (tmp_path / "page").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "page" / "first.webp")
    (tmp_path / "page" / "prompts.json").write_text('{"seen": ["taco"], "unseen": ["blue taco"]}')
    write_page(tmp_path, mini, status_of(mini, database, NOW), history_of(mini, database, tmp_path))
    page = (tmp_path / "README.md").read_text()
    assert "| 10 | 6.000 ± 0.125 |  |  |  |  |  |" in page
    assert "| 20 | 3.000 ± 0.125 | 25% | 50% | 75% | 100% | 0.344 ± 0.092 |" in page
    assert "have 0.990, chance has 0.035" in page
    assert "after 20 of 60 epochs" in page
    assert "| `ada` | 2.0 | 100.0% |" in page
    assert "`blue taco`" in page
    shown = re.findall(r"\]\((page/[^)]+)\)", page)
    assert set(shown) == {"page/first.webp", "page/losses.webp"}
    with Image.open(tmp_path / "page" / "losses.webp") as plot:
        assert plot.width > 640
        assert len(plot.getcolors(2**20)) > 10


def test_a_new_run_has_a_page_that_promises_nothing(mini, database, tmp_path):
    write_page(tmp_path, mini, status_of(mini, database, NOW), history_of(mini, database, tmp_path))
    page = (tmp_path / "README.md").read_text()
    assert "## How it is made" in page
    assert not re.search(r"How good|How it goes|What it draws|Who makes|page/", page)
    with database.writing():
        database.insert("epochs", epoch=1, ended=NOW, seconds=9.0, peers=3, loss=9.0)
    write_page(tmp_path, mini, status_of(mini, database, NOW), history_of(mini, database, tmp_path))
    assert "page/losses.webp" in (tmp_path / "README.md").read_text(), "a run without held-out data has a plot too"


def test_what_strangers_write_stays_text(mini, database):
    fill(database, HOSTILE)
    status = status_of(mini, database, NOW)
    facts = PageFacts.told(status, {"first.webp": Path("here")}, {"seen": [HOSTILE, 9 * HOSTILE], "unseen": [""]})
    html = MarkdownIt("commonmark").enable("table").render(model_page(mini, "crew/photos", facts))
    assert "<script" not in html
    assert "evil.com" in html
    assert not re.search(r'(href|src)="http://evil', html)
    assert html.count("<h1>") == 1
    assert html.split("<tr>")[-1].count("<td") == 3
    assert "eve" in html.split("<tr>")[-1]


def test_letters_of_a_name_are_bounded_and_an_empty_one_is_shown():
    assert as_code("a" * 99, 5) == "`aaaaa`"
    assert as_code("", 5) == "`?`"


def test_figures_that_cannot_be_told_are_left_out():
    assert as_json(Figures(held_out_loss=1 / 3, half_width=0.0, rows=9)) == (
        '{"held_out_loss": 0.33333, "half_width": 0.0, "rows": 9}'
    )
    assert all(value is None for name, value in asdict(Judged(captions=3)).items() if name != "captions")
