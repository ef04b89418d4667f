"""Memory as bars: one for each training, stacked by term."""

import re
from collections.abc import Iterable, Mapping, Sequence

import altair as alt
from IPython.display import HTML

from dalle_lib.dashboard.charts import to_html
from dalle_lib.memory.estimate import RAM_TERMS, TERMS

COLOURS = {
    "weights": "#4582dc",
    "optimizer state": "#de7908",
    "gradients": "#419e49",
    "activations": "#e64c4b",
    "recomputed layer": "#e468a9",
    "logits and loss": "#9f6bd4",
    "autocast copies": "#229eca",
    "backward": "#aa7755",
    "optimizer step": "#a8931a",
    "averaging buffers": "#30a095",
    "library workspaces": "#5f8fa0",
    "CUDA context": "#778398",
    "allocator slack": "#97938b",
    "master copies": "#2e91d9",
    "offloaded gradients": "#73a03b",
    "offloaded state": "#c28835",
    "snapshot": "#938c62",
    "data": "#ad7eca",
    "Python and libraries": "#858c98",
}
"""The colour of each of the calculator's terms; each has the contrast of the colours in `charts.SERIES`."""
OTHER_COLOURS = ("#ca60c3", "#899c0b", "#797ce2", "#bd7d7d", "#3695a4", "#e56d42")
"""Colours of other terms, in the order in which the terms come."""

WIDTH = 340
"""Pixels that the inside of the bars is wide: with the notebooks' labels and the totals they fit a phone."""

Rows = Iterable[tuple[str, Mapping[str, int]]]
"""Bars: the label of each, and its bytes by term."""


def memory_bars(rows: Rows, limits: Sequence[tuple[str, int]] = (), width: int = WIDTH) -> alt.LayerChart:
    """Return a stacked bar of bytes by term for each row, and a vertical line for each of the limits (name, bytes).

    The labels of the rows must differ. The totals stand in a column to the right of all bars and lines.
    """
    bars = [(label, {term: size for term, size in sizes.items() if size}) for label, sizes in rows]
    totals = [(label, sum(sizes.values())) for label, sizes in bars]
    largest = max(size for _, size in [*totals, *limits])
    unit, name = (1e9, "GB") if largest >= 1e9 else (1e6, "MB")
    domain = _in_order(bars)
    parts = [
        {
            "label": label, "term": term, "place": domain.index(term), "value": size / unit, "size": bytes_text(size),
            "formula": formula_of(term), "text": f"{label}, {term}: {bytes_text(size)}. {formula_of(term)}".strip(". "),
        }
        for label, sizes in bars for term, size in sizes.items()
    ]  # fmt: skip
    y = alt.Y("label:N", sort=[label for label, _ in bars], title=None)
    x = alt.X("value:Q", title=name, axis=alt.Axis(tickCount=5), scale=alt.Scale(domain=[0, largest / unit], nice=5))
    legend = alt.Legend(orient="bottom", columns=3, title=None, symbolType="square", labelLimit=0)
    colours = alt.Scale(domain=domain, range=_colours(domain))
    tooltip = ["label:N", "term:N", alt.Tooltip("size:N", title="bytes"), "formula:N"]
    return alt.layer(
        alt.Chart(alt.Data(values=parts), width=width, height=alt.Step(32))
        .mark_bar()
        .encode(x, y, alt.Color("term:N", scale=colours, legend=legend), tooltip=tooltip)
        .encode(order="place:Q", description="text:N"),
        *_lines([{"value": size / unit, "text": f"{name}: {bytes_text(size)}"} for name, size in limits]),
        _texts([{"label": label, "text": bytes_text(total)} for label, total in totals], y, width),
    )


def show_bars(rows: Rows, limits: Sequence[tuple[str, int]] = (), width: int = WIDTH) -> HTML:
    """Return the bars of `memory_bars` as HTML for a notebook and its saved pages."""
    return HTML(bars_html(memory_bars(rows, limits, width)))


def bars_html(chart: alt.LayerChart) -> str:
    """Return a chart as SVG in which each part has its description as a tooltip, without a script."""
    return re.sub(r'<path aria-label="([^"]*)"([^>]*)/>', r"<path\2><title>\1</title></path>", to_html(chart))


def formula_of(term: str) -> str:
    """Return the formula of a term in words; an empty text if it is not a term of the calculator."""
    return TERMS.get(term) or RAM_TERMS.get(term, "")


def bytes_text(size: float) -> str:
    """Return bytes as text with three digits or more: 11.4 GB, 327 MB, 2,799 GB."""
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")) if size >= u or u == 1)
    digits = 0 if unit == 1 else max(0, 3 - len(str(int(size / unit))))
    return f"{size / unit:,.{digits}f} {name}"


def _in_order(bars: list[tuple[str, dict[str, int]]]) -> list[str]:
    """Return the terms that occur, those of the calculator first and in its order."""
    found = dict.fromkeys(term for _, sizes in bars for term in sizes)
    return [term for term in COLOURS if term in found] + [term for term in found if term not in COLOURS]


def _colours(domain: list[str]) -> list[str]:
    """Return the colour of each term."""
    others = [term for term in domain if term not in COLOURS]
    return [COLOURS.get(t) or OTHER_COLOURS[others.index(t) % len(OTHER_COLOURS)] for t in domain]


def _texts(totals: list[dict], y: alt.Y, x: int) -> alt.Chart:
    marks = alt.Chart(alt.Data(values=totals)).mark_text(align="left", dx=8, aria=False)
    return marks.encode(x=alt.value(x), y=y, text="text:N")


def _lines(limits: list[dict]) -> list[alt.Chart]:
    if not limits:
        return []
    base = alt.Chart(alt.Data(values=limits)).encode(x="value:Q")
    black = base.mark_rule(color="black", strokeWidth=2, aria=False)
    white = base.mark_rule(color="white", strokeWidth=2, strokeDash=[4, 4], aria=False)  # visible on any bar and page
    name = base.mark_text(dy=-8, baseline="bottom", aria=False).encode(y=alt.value(0), text="text:N")
    return [black, white, name]
