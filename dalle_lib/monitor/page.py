"""The page of a run's checkpoints: a README.md with figures, pictures and contributors, and the plot that it shows."""

import io
import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from PIL import Image

from dalle_lib.files import replace_file, small_text
from dalle_lib.organizing.model_page import LOSSES, PAGE_FOLDER, PAGE_PICTURES, PROMPTS_FILE, PageFacts, model_page
from dalle_lib.organizing.publishing import PAGE
from dalle_lib.run import RunCard

logger = logging.getLogger(__name__)

WIDTH, HEIGHT, SCALE = 640, 180, 1.5
"""Pixels of each plot inside its axes, and how many more the file has for each."""
COLOURS = {"training": "#4582dc", "held out": "#de7908"}


def write_page(folder: Path, card: RunCard, status: Mapping, history: Mapping) -> None:
    """Write the page into a monitor's folder: of its status and history, and of what its checkpoints have drawn.

    Raises OSError if that cannot be written.
    """
    page = folder / PAGE_FOLDER
    page.mkdir(exist_ok=True)
    chart = plot_of(facts_in(folder, status), history["epochs"])
    if chart["vconcat"] and (plot := drawn(json.dumps(chart))) is not None:
        with replace_file(page / LOSSES) as unfinished:
            plot.save(unfinished, "WEBP", lossless=True)
    facts = facts_in(folder, status)
    text = model_page(card, card.repository or card.name, facts, facts.newest)
    with replace_file(folder / PAGE) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def facts_in(folder: Path, status: Mapping) -> PageFacts:
    """Return what a status says, with the pictures and prompts in a monitor's folder."""
    page = folder / PAGE_FOLDER
    prompts = json.loads(small_text(page / PROMPTS_FILE)) if (page / PROMPTS_FILE).exists() else {}
    return PageFacts.told(status, {name: page / name for name in PAGE_PICTURES if (page / name).exists()}, prompts)


def plot_of(facts: PageFacts, epochs: Mapping[str, list]) -> dict:
    """Return a Vega-Lite chart of the training objective and of the held-out loss with its interval, over epochs."""
    trained = [{"epoch": at, "loss": loss} for at, loss in zip(epochs["epoch"], epochs["loss"], strict=True)]
    held_out = [
        {"epoch": at, "loss": loss, "low": loss - half, "high": loss + half}
        for at, loss, half in ((at, figures["held_out_loss"], figures["half_width"]) for at, figures in facts.examined)
    ]
    x = {"field": "epoch", "type": "quantitative", "title": "epoch", "axis": {"tickMinStep": 1}}

    def y(title: str, field: str = "loss") -> dict:
        return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}}

    objective = {
        "title": "Training objective, median over peers", "width": WIDTH, "height": HEIGHT,
        "data": {"values": trained}, "mark": {"type": "line", "color": COLOURS["training"]},
        "encoding": {"x": x, "y": y("nats a token or code")},
    }  # fmt: skip
    intervals = {"mark": {"type": "rule", "color": COLOURS["held out"], "strokeWidth": 2},
                 "encoding": {"x": x, "y": y("nats a code", "low"), "y2": {"field": "high"}}}  # fmt: skip
    means = {"mark": {"type": "line", "color": COLOURS["held out"], "point": {"color": COLOURS["held out"]}},
             "encoding": {"x": x, "y": y("nats a code")}}  # fmt: skip
    examined = {
        "title": "Loss on held-out data, with its 95% interval", "width": WIDTH, "height": HEIGHT,
        "data": {"values": held_out}, "layer": [intervals, means],
    }  # fmt: skip
    shown = [chart for chart, points in ((objective, trained), (examined, held_out)) if points]
    return {
        "vconcat": shown,
        "resolve": {"scale": {"x": "shared"}},
        "config": {"background": "white", "font": "sans-serif"},
    }


@lru_cache(maxsize=1)  # most looks change nothing
def drawn(chart: str) -> Image.Image | None:
    """Return a Vega-Lite chart, which is JSON, as a picture; None where nothing draws charts on this machine."""
    try:
        import vl_convert
    except ImportError:
        logger.info("the page has no plot: pip install vl-convert-python")
        return None
    return Image.open(io.BytesIO(vl_convert.vegalite_to_png(chart, scale=SCALE))).convert("RGB")
