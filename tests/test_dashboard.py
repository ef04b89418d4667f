"""What the dashboard shows can be read on light and dark pages, and needs no network."""

import html
import io
import json
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch
import vl_convert
from filelock import FileLock
from PIL import Image
from statuses import peer_status

from dalle_lib.checks.preflight import Check, table
from dalle_lib.dashboard.bars import COLOURS, OTHER_COLOURS, show_bars
from dalle_lib.dashboard.charts import SERIES, run_chart, to_html, to_png, to_svg
from dalle_lib.dashboard.checklist import checklist
from dalle_lib.dashboard.contributions import MAX_ROUNDS, OTHERS, contributions, contributions_chart, largest
from dalle_lib.dashboard.estimates import layer_html, result_html, terms_html
from dalle_lib.dashboard.grids import grid, on_page, ranked_grid
from dalle_lib.dashboard.lessons import ladder, loss_curves, map_chart, packing
from dalle_lib.dashboard.panel import panel_html
from dalle_lib.dashboard.pictures import best_of, gallery
from dalle_lib.dashboard.summary import NOT_EXAMINED, NOT_RANKED, scores, summarize, summary_text
from dalle_lib.evaluation import Drawn, Examination
from dalle_lib.inference import Choice, Drawing, Novelty, Settings
from dalle_lib.measurement import Measurement
from dalle_lib.memory import GPUS, Training, estimate
from dalle_lib.swarm import Crew, Peer, PeerSettings
from dalle_lib.swarm.process.history import epochs_of
from dalle_lib.swarm.process.status import SwarmStatus

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96, "vocab_size": 500}
PAGES = ("#ffffff", "#383838", "#111111")
"""The backgrounds of saved pages and GitHub, of Colab's dark theme, and of Jupyter's."""
ALL_COLOURS = {*SERIES, *COLOURS.values(), *OTHER_COLOURS}
NAMES = ("ada", "<script>alert(1)</script>", 'eve" & co')
CHECKS = table(
    [
        Check("system", "Linux or macOS", "Linux", True),
        Check("GPU", "not needed", "none that torch sees", True, "install torch again"),
        Check("free disk", "9.9 GB", "0.1 GB", False, "make room where <downloads> go, " + "and there " * 30 + "too"),
    ]
)


@pytest.fixture(scope="module")
def peer(tmp_path_factory) -> Iterator[Peer]:
    """A peer that seems to run, in its fifth epoch, with two others."""
    folder = tmp_path_factory.mktemp("peer")
    PeerSettings(run="emoji-mini", name="ada").save(folder / "settings.json")
    events = [
        {"event": "started", "pid": 1},
        {"event": "joined", "epoch": 0, "peer_id": "id0", "name": "ada", "device": "cpu", "peers": 3},
    ]
    events += [
        {"event": "epoch", "epoch": i, "loss": 6.0 - i, "samples": 96, "seconds": 7.0, "peers": i // 2 + 1, "lr": 1e-3}
        for i in range(1, 6)
    ]
    events += [
        {"event": "averaged", "epoch": i, "peers": 3, "shares": {"id0": 0.5, "id1": 0.5}, "error": None,
         "counted": {"id0": 48.0, "id1": 32.0, "id2": 16.0} if i > 2 else {"id0": 64.0, "id1": 32.0}}
        for i in range(1, 6)
    ]  # fmt: skip
    lines = [json.dumps({"time": 1e9 + 7 * i, **event}) + "\n" for i, event in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    peers = [
        peer_status(f"id{i}", name, epoch=5, samples=96 * i, samples_per_s=2.0, loss=[1.5, None][i % 2])
        for i, name in enumerate(NAMES)
    ]
    status = SwarmStatus(time=2e9, epoch=5, total_epochs=20, samples_in_epoch=3, target_batch_size=96, peers=peers)
    status.write(folder)
    with FileLock(folder / "peer.lock"):
        yield Peer(folder)


@pytest.fixture(scope="module")
def crew(peer) -> Crew:
    """The peers that this volunteer started: one."""
    return Crew(peer.folder.parent, "emoji-mini", {"ada": peer})


def examination(right: int) -> Examination:
    """Return an examination with that many right pictures, of 5 seen captions and of 3 unseen ones."""
    seen, unseen = (
        Drawn([f"caption {i}" for i in range(count)], torch.zeros(count, 8, 8, 3, dtype=torch.uint8),
              [i < right for i in range(count)])
        for count in (5, 3)
    )  # fmt: skip
    return Examination(4.0 - right / 3, seen, unseen)


@pytest.fixture(scope="module")
def shown(peer, crew) -> dict[str, str]:
    """What the dashboard puts on pages, one of each kind."""
    needed, t4 = estimate(SMALL, Training(swarm=True, offload="optimizer")), GPUS["T4"]
    curves = {name: [3.0, 2.0 + i, 1.0] for i, name in enumerate(("a", "b", "c"))}
    measured = Measurement(
        training=Training(), device="cpu", predicted=9, available=99, peak=10, weights=4, losses=[1.0]
    )
    drawing = Drawing(
        prompt="<b>red</b> apple", caption="red apple", model="emoji", settings=Settings(),
        codes=torch.zeros(3, 4, dtype=torch.long),
        candidates=torch.full((3, 8, 8, 3), 77, dtype=torch.uint8), scores=torch.tensor([0.1, 0.3, 0.2]),
        choices=[Choice(1, 2), Choice(2, 1)], noise=0.0, seconds={"draw": 1.0}, novelty=Novelty(words=["<i>"]),
    )  # fmt: skip
    return {
        "panel": panel_html(peer),
        "bars": show_bars([("a", {"weights": 7, "measured peak": 5}), ("b", dict.fromkeys(COLOURS, 3))]).data,
        "calculator": result_html(needed, t4),
        "formulas": terms_html(needed) + layer_html(needed),
        "ladder": ladder({"plain": measured}, SMALL).data,
        "losses": loss_curves(curves).data,
        "packing": packing(torch.tensor([[5, 6, 0, 7, 8], [9, 0, 4, 4, 4]]), end=0).data,
        "maps": map_chart({"linear": torch.linspace(-1, 1, 9)}, torch.tensor([0.5, 0.01])).data,
        "best": best_of(drawing).data,
        "gallery": gallery([drawing]).data,
        "checklist": checklist(CHECKS).data,
        "contributions": contributions(peer, crew).data,
        "scores": scores(examination(1), examination(2)).data,
        "nothing": scores(None).data,
    }


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour: str, page: str) -> float:
    dark, light = sorted((luminance(colour), luminance(page)))
    return (light + 0.05) / (dark + 0.05)


def written_colours(text: str) -> set[str]:
    """Return the colours that markup names, but for those inside pictures."""
    text = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
    by_number = re.findall(r"#[0-9a-fA-F]{3,8}\b|(?:rgb|hsl)a?\([^)]*\)", text)
    by_name = re.findall(r"""(?:fill|stroke|color|background)(?:=["']|:\s*)([a-zA-Z]+)\b(?!\()""", text)
    return {*by_number, *by_name}


def greys(png: bytes) -> list[int]:
    return list(Image.open(io.BytesIO(png)).convert("L").tobytes())


@pytest.mark.parametrize("page", PAGES)
def test_each_colour_has_a_contrast_of_three_to_one_on_each_page(page):
    assert all(contrast(colour, page) >= 3 for colour in ALL_COLOURS), {c: contrast(c, page) for c in ALL_COLOURS}


@pytest.mark.parametrize("colours", [SERIES, (*COLOURS.values(), *OTHER_COLOURS)])
def test_no_two_of_a_chart_have_one_colour(colours):
    assert len(set(colours)) == len(colours)


def test_parts_of_a_page_take_its_ink_and_have_no_background(shown):
    for kind, text in shown.items():
        translucent = {colour for colour in written_colours(text) if colour.startswith("rgba(128,128,128,0.")}
        others = written_colours(text) - translucent - ALL_COLOURS - {"currentColor", "none", "transparent"}
        assert others == ({"black", "white"} if kind == "calculator" else set()), kind  # one is seen on any bar
        assert all('fill="currentColor"' in tag for tag in re.findall(r"<text[^>]*>", text)), kind
    assert sum("<text" in text for text in shown.values()) == 8


def test_parts_of_a_page_need_neither_network_nor_script(shown):
    for kind, text in shown.items():
        addresses = set(re.findall(r"https?://[^\"'\s>]+", re.sub("<a href=.*?>", "", text)))  # a link loads nothing
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, kind
        assert not re.search(r"<script|<link|<iframe|@import|url\(|\son\w+=|src=(?!'data:)", text), kind


def test_names_prompts_and_words_are_text_not_markup(shown):
    for name in NAMES:
        assert html.escape(name) in shown["panel"]
        assert html.escape(name) in shown["contributions"]
    assert "ada (you)" in shown["panel"]
    assert "&lt;b&gt;red&lt;/b&gt; apple" in shown["gallery"]
    assert "<b>red" not in shown["gallery"] + shown["best"]
    assert "&lt;i&gt;" in shown["best"]


def test_the_panel_says_where_the_run_is(shown):
    assert all(part in shown["panel"] for part in ("epoch 5 of 20", "width:25.0%", "2 min", "480", "–"))


def test_each_check_is_a_tick_or_a_cross_with_all_that_it_says(shown):
    assert re.findall("[✓✗]", shown["checklist"]) == ["✓", "✓", "✗"]
    for text in [*CHECKS.index, *CHECKS["needed"], *CHECKS["here"], *CHECKS["remedy"]]:
        assert html.escape(text) in shown["checklist"]
    assert shown["checklist"].count("→") == 2


def test_contributions_are_the_shares_of_all_rounds_and_a_bar_for_each(peer, crew, shown):
    counted = {"ada": 2 * 64 + 3 * 48, NAMES[1]: 5 * 32, NAMES[2]: 3 * 16}
    for name, samples in counted.items():
        assert html.escape(f"{name} {samples / sum(counted.values()):.0%}") in shown["contributions"]
    bars = set(re.findall(r'aria-label="(epoch: [^"]+)" role="graphics-symbol"', shown["contributions"]))
    assert len(bars) == 5 + 5 + 3
    assert f"epoch: 4; samples: 48; peer: {NAMES[0]}" in "".join(bars)


def test_peers_beyond_the_colours_are_added_up_but_never_ones_own():
    counted = pd.DataFrame([{f"peer {i}": 10.0 + i for i in range(9)}], index=[1])
    named = largest(counted, "peer 1", len(SERIES))
    assert list(named) == ["peer 1", "peer 8", "peer 7", "peer 6", "peer 5", OTHERS]
    assert named[OTHERS].item() == 10 + 12 + 13 + 14
    assert named.sum(axis=1).equals(counted.sum(axis=1))
    assert OTHERS in to_svg(contributions_chart(named))
    many = pd.concat([named] * (MAX_ROUNDS + 1), ignore_index=True)
    drawn = to_svg(contributions_chart(many))
    assert f"the last {MAX_ROUNDS} rounds" in drawn
    places = [float(x) for x in re.findall(r'translate\(([\d.]+),\d+\)"[^>]*opacity="1">\d\d</text>', drawn)]
    assert np.diff(places).min() > 20, "numbers of rounds do not touch: two digits are 16 pixels wide"


def test_scores_count_right_pictures_before_and_after(shown):
    assert re.findall(r"<td>(\d of \d)</td>", shown["scores"]) == ["1 of 5", "2 of 5", "1 of 3", "2 of 3"]
    assert re.findall(r"<td>(\d\.\d+)</td>", shown["scores"]) == ["3.67", "3.33"]
    assert "after" not in scores(examination(1)).data


def test_where_there_is_nothing_to_show_a_sentence_says_why(tmp_path):
    for nothing in (grid(None, None), scores(None), scores(None, None)):
        assert html.unescape(nothing.data) == f"<p>{NOT_EXAMINED}</p>"
    assert html.unescape(on_page(ranked_grid([]), "best").data) == f"<p>{NOT_RANKED}</p>"
    newcomer = Peer(tmp_path)
    assert "has not finished a round" in contributions(newcomer, Crew(tmp_path, "emoji-mini", {"you": newcomer})).data


def test_the_sheet_of_clips_choice_has_room_for_the_caption_with_most_pictures(shown):
    pictures = torch.full((6, 8, 8, 3), 77, dtype=torch.uint8)
    drawings = [
        Drawing(
            prompt=f"{count}", caption="x", model="emoji", settings=Settings(),
            codes=torch.zeros(6, 4, dtype=torch.long),
            candidates=pictures, scores=torch.zeros(6), choices=[Choice(i, 1) for i in range(count)], noise=0.0,
            seconds={"draw": 1.0},
        )
        for count in (1, 5)
    ]  # fmt: skip
    sheet = ranked_grid(drawings, side=50)
    grey = (np.asarray(sheet) == 77).all(2).any(0)
    assert grey[-50 - 8 : -8].all(), "the fifth of the best is in the last column"
    assert ranked_grid(drawings[:1], side=50).width == sheet.width - 58, "four columns give the heading room"
    assert "<img alt='CLIP&#x27;s choice' style='max-width:none'" in on_page(sheet, "CLIP's choice").data


def test_the_summary_is_told_with_the_scores_only_where_there_are_some(peer, crew, tmp_path):
    (tmp_path / "before_after.png").touch()
    told = summary_text(summarize(crew, peer, examination(1), examination(2)), tmp_path)
    assert "20% before, 40% after" in told
    assert f"Look at {tmp_path / 'before_after.png'}." in told
    (tmp_path / "before_after.png").rename(tmp_path / "run.png")
    told = summary_text(summarize(crew, peer, None, None), tmp_path)
    assert re.search(rf"^5 epochs(?s:.*)Look at {tmp_path / 'run.png'}\.", told)
    assert "before" not in told


@pytest.mark.parametrize("ink", ["#000000", "#e3e3e3"])
def test_a_chart_on_a_page_is_drawn_in_the_colour_of_its_text(peer, ink):
    (svg,) = re.findall("<svg.*</svg>", to_html(run_chart(epochs_of(peer))), re.DOTALL)
    svg = svg.replace("<svg ", f'<svg color="{ink}" ', 1)
    with Image.open(io.BytesIO(vl_convert.svg_to_png(svg))) as picture:
        pixels = picture.convert("RGBA")
    assert pixels.getpixel((0, 0))[3] == 0
    seen = {colour for _, colour in pixels.getcolors(2**24)}
    assert (*bytes.fromhex(ink[1:]), 255) in seen
    assert (*bytes.fromhex(SERIES[0][1:]), 255) in seen


def test_text_of_a_chart_has_nine_pixels_or_more_on_a_narrow_page(peer):
    for page in (
        to_html(run_chart(epochs_of(peer))),
        loss_curves({"a": [1, 2]}).data,
        show_bars([("a", {"b": 7})]).data,
    ):
        least = float(re.search(r"min-width:([\d.]+)px", page)[1])
        width = float(re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+)', page)[1])
        sizes = [float(size) for size in re.findall(r'<text [^>]*font-size="([\d.]+)px"', page)]
        assert min(sizes) * least / width >= 9


def test_files_are_black_on_white(peer):
    chart = run_chart(epochs_of(peer))
    svg, png = to_svg(chart), to_png(chart)
    assert "currentColor" not in svg
    assert re.search(r'<rect width="\d+" height="\d+" fill="white"/>', svg)
    for picture in (png, vl_convert.svg_to_png(svg)):
        shades = greys(picture)
        assert shades[0] == shades[-1] == 255
        assert min(shades) < 30
        with Image.open(io.BytesIO(picture)) as opened:
            assert opened.convert("RGBA").getextrema()[3] == (255, 255)
