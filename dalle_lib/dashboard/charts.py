"""The chart of a run, and how every chart becomes part of a page or a file."""

import re

import altair as alt
import pandas as pd

from dalle_lib.dashboard.scrolling import scrolling

WIDTH = 400
"""Pixels that the inside of a chart is wide."""
TEXT_SIZE = 14
"""Pixels of all text in a chart."""
SMALLEST = 9.1 / TEXT_SIZE
"""How far a chart shrinks on a narrow page: its text then has 9 pixels. On a still narrower one it scrolls."""
SERIES = ("#4582dc", "#de7908", "#419e49", "#9f6bd4", "#30a095", "#e64c4b")
"""Colours of a chart's series, in their order. Each has a contrast of 3:1 to white, to #383838 and to #111111."""


def run_chart(epochs: pd.DataFrame) -> alt.VConcatChart:
    """Return charts of the loss and of the number of peers over the epochs that `epochs_of` returned."""
    data = epochs.assign(epoch=epochs["epoch"].astype(int))
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1))
    loss = (
        alt.Chart(data, width=WIDTH, height=180, title="Loss, in nats per text token or code")
        .mark_line(color=SERIES[0], point=True)
        .encode(x=x, y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)))
    )
    peers = (
        alt.Chart(data, width=WIDTH, height=90, title="Peers that took part")
        .mark_line(color=SERIES[1], interpolate="step-after")
        .encode(x=x, y=alt.Y("peers:Q", title="peers", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(domainMin=0)))
    )
    return alt.vconcat(loss, peers)


def to_html(chart: alt.TopLevelMixin) -> str:
    """Return a chart as SVG for a page: in the page's own text colour, without a script or the network.

    It is as wide as the page, up to its own width, but stays legible: see `SMALLEST`.
    """
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart.to_json(), config=_look("currentColor", "transparent"))
    width = float(re.search(r'<svg [^>]*width="([\d.]+)"', svg)[1])
    style = f"width:100%;max-width:{width:g}px;min-width:{SMALLEST * width:g}px;height:auto"
    scaled = svg.replace("<svg ", f'<svg style="{style}" ', 1)
    return scrolling(scaled)


def to_svg(chart: alt.TopLevelMixin) -> str:
    """Return a chart as an SVG file, black on white."""
    import vl_convert

    return vl_convert.vegalite_to_svg(chart.to_json(), config=_look("black", "white"))


def to_png(chart: alt.TopLevelMixin, scale: float = 2.0) -> bytes:
    """Return a chart as a PNG file, black on white."""
    import vl_convert

    return vl_convert.vegalite_to_png(chart.to_json(), scale=scale, config=_look("black", "white"))


def _look(ink: str, background: str) -> dict:
    """Return the defaults of every chart, for what it does not set itself; `ink` colours all but its marks."""
    return {
        "background": background,
        "view": {"stroke": None},
        "axis": {
            "domainColor": ink, "tickColor": ink, "gridColor": ink, "gridOpacity": 0.2, "labelFontSize": TEXT_SIZE,
            "labelLimit": 260, "titleFontSize": TEXT_SIZE,
        },
        "header": {"labelFontSize": TEXT_SIZE},
        "legend": {"labelFontSize": TEXT_SIZE, "symbolSize": 120},
        "style": {name: {"fill": ink} for name in ("guide-label", "guide-title", "group-title")},
        "text": {"color": ink, "fontSize": TEXT_SIZE},
        "title": {"fontSize": TEXT_SIZE},
        "mark": {"color": SERIES[0]},
        "range": {"category": list(SERIES)},
    }  # fmt: skip
