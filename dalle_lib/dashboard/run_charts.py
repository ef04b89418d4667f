"""The charts of a run, of what its monitor tells: one set for notebooks, pages and files.

Each is a function of the rows of one table. All that is derived is computed in the chart, by Vega-Lite, so that a page
without Python only has to turn columns into rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

from dalle_lib.dashboard.charts import SERIES

Rows = Sequence[Mapping[str, Any]]
HEIGHT = 180
"""Pixels of a chart between its axes."""
MAX_DOTS = 60
"""Points of a line up to which each has a dot, which tells its numbers."""
MANY_POINTS, AROUND = 400, 24
"""Points of a line beyond which it is faint, below the mean of each point and of so many before and after it."""
WIDTHS, SIZES = [2.5, 1.2, 1.2], [70, 30, 30]
"""Pixels of the lines of a chart, and the area of their dots: the first lies below others, which must not hide it."""
BARS, BAR_HEIGHT = 20, 20
"""Users in the chart of contributions, those of the first ranks, and the pixels of each."""
X_AXIS = "x_axis"
"""The signal that chooses the horizontal axis of charts by epoch: "epoch", "time" or "samples"."""
_X = (
    f"{X_AXIS} == 'time' ? 1000 * datum.ended : {X_AXIS} == 'samples' ? datum.samples : datum.epoch",
    f"{X_AXIS} == 'time' ? utcFormat(datum.value, span(domain('x')) > 2e8 ? '%b %d' : '%H:%M') : "
    f"{X_AXIS} == 'samples' ? format(datum.value, '~s') : format(datum.value, ',')",
)
"""What the axis shows, and its labels."""
_TICKS = alt.Axis(labelExpr=_X[1], labelFlush=True, labelOverlap=True, tickCount=6, title=None)
_FORMATS = dict.fromkeys(("hours", "minutes"), "%H:%M") | dict.fromkeys(("date", "day", "week", "month"), "%b %d")
_EPOCH = "format(datum.epoch, ',')", "epoch"
_MOMENTS = alt.X(
    "x:T", title="UTC", scale=alt.Scale(type="utc"),
    axis=alt.Axis(labelFlush=True, labelOverlap=True, tickCount=6, format=_FORMATS),
)  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """One of the charts."""

    title: str
    alt: str
    """What it shows, in a sentence, for who does not see it."""
    table: str
    """The table that it shows: one of the history, or `users` of the status."""
    of: Callable[[Rows], alt.LayerChart]
    """Returns the chart of the table's rows, as wide as what holds it."""


def objective_chart(rows: Rows) -> alt.LayerChart:
    """Return the training loss over `epochs`, or over time or samples if X_AXIS says so."""
    return _by_epoch(rows, alt.Y("value:Q", title="nats", scale=alt.Scale(zero=False)), loss="training loss")


def speed_chart(rows: Rows) -> alt.LayerChart:
    """Return how many samples all peers compute in a second, of `epochs`."""
    return _by_epoch(rows, alt.Y("value:Q", title="samples/s"), samples_per_s="samples a second")


def averaged_chart(rows: Rows) -> alt.LayerChart:
    """Return which part of the samples reached an average with others, of `epochs`."""
    y = alt.Y("value:Q", title="of samples", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1], clamp=True))
    return _by_epoch(rows, y, counted_share="averaged")


def spread_chart(rows: Rows) -> alt.LayerChart:
    """Return how far the parameters of peers are apart, relative to their norm, of `epochs`."""
    y = alt.Y("value:Q", title="of their norm", axis=alt.Axis(format=".2~%"))
    return _by_epoch(rows, y, spread="most users", farthest="the farthest peer")


def participants_chart(rows: Rows) -> alt.LayerChart:
    """Return how many peers and how many users took part, of `hours`."""
    y = alt.Y("value:Q", title=None, axis=alt.Axis(tickMinStep=1), scale=alt.Scale(domainMin=0, clamp=True))
    return _by_hour(rows, y, peers="peers", users="users")


def bandwidth_chart(rows: Rows) -> alt.LayerChart:
    """Return what averaging sends and receives, of `hours`."""
    return _by_hour(rows, alt.Y("value:Q", title="Mbit/s"), down_mbps="received", up_mbps="sent")


def held_out_chart(rows: Rows) -> alt.LayerChart:
    """Return the loss on held-out data with its interval, of `evaluations`."""
    y = alt.Y("value:Q", title="nats a code", scale=alt.Scale(zero=False))
    lines = _by_checkpoint(rows, y, loss="held-out loss")
    interval = (
        alt.Chart().transform_calculate(x="datum.epoch").mark_area(opacity=0.25, color=SERIES[0], clip=True, aria=False)
    )
    return alt.layer(
        interval.encode(x="x:Q", y=alt.Y("low:Q", title="nats a code", scale=alt.Scale(zero=False)), y2="high:Q"),
        *lines.layer,
        data=lines.data,
    ).properties(width="container", height=HEIGHT)


def rank_chart(rows: Rows) -> alt.LayerChart:
    """Return how well what checkpoints draw fits its captions, between chance and the held-out pictures."""
    y = alt.Y("value:Q", title="1 / rank", scale=alt.Scale(domain=[0, 1], clamp=True))
    return _by_checkpoint(rows, y, rank="drawn", rank_ceiling="held-out pictures", rank_chance="chance")


def copies_chart(rows: Rows) -> alt.LayerChart:
    """Return how near what checkpoints draw is to training pictures, beside held-out pictures."""
    y = alt.Y("value:Q", title="cosine", scale=alt.Scale(zero=False))
    return _by_checkpoint(rows, y, nearest="drawn", nearest_held_out="held-out pictures")


def leaderboard_chart(rows: Rows) -> alt.LayerChart:
    """Return the hours of computing of the first `users`, with their share of the averaged gradients."""
    chart = (
        alt.Chart(_data(rows))
        .transform_filter(f"datum.rank <= {BARS}")
        .transform_window(place="row_number()", sort=[alt.SortField("rank")])
        .transform_filter(f"datum.place <= {BARS}")
        .transform_calculate(
            hours="datum.compute_s / 3600",
            named="datum.place + '. ' + datum.user",
            told="format(datum.compute_s / 3600, ',.1f') + ' h, ' + format(datum.share, '.1%')",
        )
    )
    y = alt.Y("named:N", sort=alt.SortField("place"), title=None, axis=alt.Axis(labelLimit=130, ticks=False))
    x = alt.X("hours:Q", title="hours of computing", axis=alt.Axis(tickCount=4))
    bars = chart.mark_bar(color=SERIES[0], height={"band": 0.75}).encode(x=x, y=y, tooltip=["user:N", "told:N"])
    return alt.layer(bars).properties(width="container", height=alt.Step(BAR_HEIGHT))


CHARTS = {
    "objective": Chart(
        "Training objective",
        "The training loss, the median over peers, which falls as the model learns.",
        "epochs",
        objective_chart,
    ),
    "participants": Chart(
        "Active participants", "How many peers and how many users took part.", "hours", participants_chart
    ),
    "speed": Chart(
        "Samples a second", "How many samples all peers together went through in a second.", "epochs", speed_chart
    ),
    "averaged": Chart(
        "Averaged gradients",
        "Which part of the samples reached an average with others, over five epochs.",
        "epochs",
        averaged_chart,
    ),
    "spread": Chart(
        "Spread of parameters",
        "How far the parameters of most users, and of the farthest peer, are from the middle ones after each update.",
        "epochs",
        spread_chart,
    ),
    "bandwidth": Chart(
        "Bandwidth of averaging",
        "What the median user's peer sent and received to average, in Mbit/s.",
        "hours",
        bandwidth_chart,
    ),
    "held_out": Chart(
        "Loss on held-out data",
        "The loss of each checkpoint on data that nobody trains on, with its 95% interval.",
        "evaluations",
        held_out_chart,
    ),
    "rank": Chart(
        "Do the pictures fit their captions?",
        "The mean of 1 / rank of the right caption by CLIP: what checkpoints draw, between chance and real pictures.",
        "evaluations",
        rank_chart,
    ),
    "copies": Chart(
        "Does the model copy?",
        "How near each picture is to a training picture by CLIP: drawn ones far above held-out ones would be copies.",
        "evaluations",
        copies_chart,
    ),
    "leaderboard": Chart(
        "Contributions",
        f"Hours of computing of the {BARS} users who gave most, each with the share of the averaged gradients.",
        "users",
        leaderboard_chart,
    ),
}
"""All charts, by name, in the order in which they are shown."""


def rows_of(table: Mapping[str, Sequence]) -> list[dict[str, Any]]:
    """Return the rows of a table of columns of equal length, as a history has them."""
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


@lru_cache(maxsize=1)
def chart_specs() -> dict[str, dict]:
    """Return each chart compiled for Vega, to be filled by a page: `title`, `alt`, `table` and `spec`, by its name.

    The rows belong into the data named `rows`. A chart by epoch has the signal X_AXIS.
    """
    return {name: {"title": each.title, "alt": each.alt, "table": each.table, "spec": _compiled(each)}
            for name, each in CHARTS.items()}  # fmt: skip


def _compiled(chart: Chart) -> dict:
    import vl_convert

    spec = vl_convert.vegalite_to_vega(chart.of([]).to_dict(), config=LOOK)
    for line in (mark for group in spec["marks"] for mark in group.get("marks", ()) if mark["type"] == "line"):
        for place in "x", "y":  # that each is valid need not be asked for every point: all others are left out before
            line["encode"]["update"][place] = line["encode"]["update"][place][-1]
    return spec


LOOK = {
    "view": {"stroke": None},
    "autosize": {"type": "fit-x", "contains": "padding"},
    "axis": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "gridOpacity": 0.2},
    "legend": {"labelFontSize": 12, "orient": "top", "title": None},
}  # fmt: skip
"""The look of charts in a page, whose own colours its text has."""


def _data(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=list(rows), name="rows")


def _by_epoch(rows: Rows, y: alt.Y, **names: str) -> alt.LayerChart:
    """Return a chart over epochs, time or samples; `names` says what each column that it shows is."""
    chart = alt.Chart(_data(rows)).transform_calculate(x=_X[0])
    made = _lines(chart, alt.X("x:Q", axis=_TICKS, scale=alt.Scale(zero=False, nice=False)), y, _EPOCH, names)
    return made.add_params(alt.param(name=X_AXIS, value="epoch"))


def _by_hour(rows: Rows, y: alt.Y, **names: str) -> alt.LayerChart:
    chart = alt.Chart(_data(rows)).transform_calculate(x="datum.hour * 3600000")
    return _lines(chart, _MOMENTS, y, ("utcFormat(datum.x, '%b %d, %H:%M UTC')", "time"), names)


def _by_checkpoint(rows: Rows, y: alt.Y, **names: str) -> alt.LayerChart:
    chart = alt.Chart(_data(rows)).transform_calculate(x="datum.epoch")
    axis = alt.Axis(labelFlush=True, labelOverlap=True, tickCount=6, tickMinStep=1)
    x = alt.X("x:Q", title="epoch", axis=axis, scale=alt.Scale(zero=False, nice=False))
    return _lines(chart, x, y, _EPOCH, names)


def _lines(chart: alt.Chart, x: alt.X, y: alt.Y, where: tuple[str, str], names: Mapping[str, str]) -> alt.LayerChart:
    """Return a line for each column, with dots where points are few, and a smoother one where they are many.

    `where` is what a dot tells of its place, and what that is. Values that are missing are left out.
    """
    # A page has an interpreter evaluate what is told of each row: without descriptions that nobody hears, and with
    # names looked up in the legend alone, it takes a third of the time.
    told = "{" + ", ".join(f"{column}: '{name}'" for column, name in names.items()) + "}"
    chart = (
        chart.transform_fold(list(names), as_=["column", "value"])
        .transform_filter("isValid(datum.value) && isValid(datum.x)")
        .transform_joinaggregate(points="count()", groupby=["column"])
    )
    few, many = (chart.transform_filter(f"datum.points {than} {MANY_POINTS}") for than in ("<=", ">"))
    many = many.transform_window(smooth="mean(value)", frame=[-AROUND, AROUND], groupby=["column"])
    dots = few.transform_filter(f"datum.points <= {MAX_DOTS}")
    dots = dots.transform_calculate(line=f"{told}[datum.column]", place=where[0])
    smooth = y.copy(deep=True)
    smooth.shorthand = "smooth:Q"
    columns, line = list(names), {"aria": False, "invalid": "show"}
    legend = alt.Legend(labelExpr=f"{told}[datum.label]", symbolOpacity=1) if len(names) > 1 else None
    scale = alt.Scale(domain=columns, range=list(SERIES[: len(names)]))
    color = alt.Color("column:N", title=None, scale=scale, legend=legend)
    width, size = (
        kind("column:N", scale=alt.Scale(type="ordinal", domain=columns, range=values[: len(names)]), legend=None)
        for kind, values in ((alt.StrokeWidth, WIDTHS), (alt.Size, SIZES))
    )
    tooltip = ["line:N", alt.Tooltip("place:N", title=where[1]), alt.Tooltip("value:Q", format=",.4~g")]
    return alt.layer(
        few.mark_line(**line).encode(x=x, y=y, color=color, strokeWidth=width),
        many.mark_line(strokeWidth=1.5, opacity=0.3, **line).encode(x=x, y=y, color=color),
        many.mark_line(**line).encode(x=x, y=smooth, color=color, strokeWidth=width),
        dots.mark_circle(opacity=1).encode(x=x, y=y, color=color, size=size, tooltip=tooltip),
    ).properties(width="container", height=HEIGHT)
