"""What is wider than its page scrolls, and shows that it does."""

import json
import re

import nbformat
import pytest
from PIL import Image

from dalle_lib.dashboard.bars import show_bars
from dalle_lib.dashboard.estimates import layer_html, terms_html
from dalle_lib.dashboard.grids import on_page
from dalle_lib.dashboard.lessons import ladder, loss_curves
from dalle_lib.dashboard.recorded import recorded_run
from dalle_lib.dashboard.scrolling import FADE, scrolling, scrolling_style
from dalle_lib.dashboard.tables import table_html
from dalle_lib.measurement import Measurement
from dalle_lib.memory import Training, estimate
from dalle_lib.notebook_run import to_html

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 500}
MEASURED = Measurement(training=Training(), device="cpu", predicted=9, available=99, peak=10, weights=4, losses=[1.0])
RECORD = {
    "model": "m",
    "device": "d",
    "date": "today",
    "versions": {},
    "losses": [2, 1],
    "trainings": {"a": {"b": "c"}},
}


@pytest.fixture
def wide_parts(tmp_path) -> dict[str, str]:
    """Parts of pages that may be wider than the page: each kind of chart, table and sheet."""
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    return {
        "table": table_html(["a", "b"], [["1", "2"]]),
        "curves": loss_curves({"a": [1, 2]}).data,
        "bars": show_bars([("a", {"b": 7})]).data,
        "terms": terms_html(estimate(SMALL, Training())),
        "layer": layer_html(estimate(SMALL, Training())),
        "ladder": ladder({"plain": MEASURED}, SMALL).data,
        "record": recorded_run(tmp_path / "run.json").data,
        "sheet": on_page(Image.new("RGB", (900, 9)), "a wide sheet").data,
    }


def test_each_chart_table_and_sheet_is_a_block_that_fades_where_there_is_more(wide_parts):
    for kind, text in wide_parts.items():
        blocks = re.findall(r"(<div [^>]*>)?<(?:table|svg|img)\b", text)
        assert blocks, kind
        assert set(blocks) == {'<div class="dalle-scroll">'}, kind
        assert text.count(scrolling_style(".dalle-scroll")) == len(blocks), kind
        assert len(re.findall(r"overflow(?:-x)?\s*:", text)) == len(blocks), f"{kind} scrolls by one rule"


def test_the_fade_is_outside_the_block_until_scrolling_moves_it_in():
    style = scrolling_style(".wide")
    assert re.search(
        r"\.wide \{ overflow-x: auto;[^}]* transparent\) 0 0 /\s+calc\(100% \+ \d+px\) 100% no-repeat;", style
    )
    assert style.index("animation: ") < style.index("animation-timeline: "), "the short form would unset the timeline"
    assert style.count(f"{FADE}px") == 3
    assert re.search(r"from, 80% \{ mask-position: -\d+px 0; \} to \{ mask-position: 0 0; \}", style)
    assert scrolling("<b>") == f'{scrolling_style(".dalle-scroll")}<div class="dalle-scroll"><b></div>'


def test_a_saved_pages_code_outputs_and_text_scroll_by_the_same_style_and_words_stay_whole():
    stream = nbformat.v4.new_output("stream", text="some words " * 40)
    cells = [nbformat.v4.new_code_cell("1", outputs=[stream]), nbformat.v4.new_markdown_cell("`code`")]
    page = to_html(nbformat.v4.new_notebook(cells=cells))
    head = page[: page.index("</head>")]
    (selector,) = re.findall(r"\n([^\n{}]+) \{ overflow-x: auto; mask", head)
    assert scrolling_style(selector) in head
    for block in (".jp-OutputArea-output", ".jp-InputArea-editor", ".jp-MarkdownOutput"):
        assert block in selector
        assert re.search(rf'class="[^"]*{block[1:]}\b', page[len(head) :]), f"the page has no {block}"
    kept_whole = head.index(
        ".jp-OutputArea-output pre, .jp-MarkdownOutput code { word-break: normal; overflow-wrap: any"
    )
    assert kept_whole > head.rindex("word-break: break-all"), "it must come after Jupyter's own rule"
