"""Tables and charts of the tutorial: measurements, losses, packed text, number maps, statistics by kind."""

import math
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd
from IPython.display import HTML
from torch import Tensor, nn
from torch.optim import Optimizer

from dalle_lib.dashboard.bars import bars_html, bytes_text, memory_bars
from dalle_lib.dashboard.charts import SERIES, WIDTH, to_html
from dalle_lib.dashboard.scrolling import scrolling
from dalle_lib.measurement import Measurement
from dalle_lib.measurement.workload import embedding_weights
from dalle_lib.memory import Estimate, estimate
from dalle_lib.memory.training import QUANTISED_FROM

REST = "activations and other tensors"
"""What a measurement cannot tell apart: activations, logits, copies for autocast, gradients of activations."""


def ladder(measurements: Mapping[str, Measurement], config: str | Mapping) -> HTML:
    """Return a table of named measurements, and bars of the last one and of the calculator's prediction for it.

    `config` is the measured model: the name of a preset, or the fields of a Hub config.
    """
    measured = list(measurements.values())[-1]
    predicted = estimate(config, measured.training, "cuda" if measured.device == "cuda" else "cpu")
    bars = [("predicted", predicted_terms(predicted))]
    if measured.fits:
        bars.append(("measured", measured_terms(measured)))
    table = ladder_table(measurements).to_html(index=False, border=0)
    return HTML(scrolling(table) + bars_html(memory_bars(bars)))


def measured_terms(measured: Measurement) -> dict[str, int]:
    """Return the bytes of the measured peak by term, as far as a measurement can tell the terms apart."""
    parts = {"weights": measured.weights, "gradients": measured.gradients}
    if measured.training.keeps_state:
        parts["optimizer state"] = measured.statistics
    rest = "optimizer step" if measured.peaks_in_optimizer_step else REST
    return parts | {rest: measured.peak - sum(parts.values())}


def predicted_terms(predicted: Estimate) -> dict[str, int]:
    """Return the bytes of the predicted peak by the terms that a measurement can tell apart."""
    parts = {term: predicted.tensors.get(term, 0) for term in ("weights", "gradients", "optimizer state")}
    rest = "optimizer step" if predicted.moment == "optimizer step" else REST
    return parts | {rest: predicted.allocated - sum(parts.values())}


def ladder_table(measurements: Mapping[str, Measurement]) -> pd.DataFrame:
    """Return for each measurement the predicted and the measured bytes, statistics, seconds of a step and loss."""
    lines = []
    for name, measured in measurements.items():
        line = {"training": name, "predicted": bytes_text(measured.predicted)}
        if measured.fits:
            line |= {
                "measured": bytes_text(measured.peak),
                "error": error_text(measured),
                "statistics": bytes_text(measured.statistics),
                "seconds a step": f"{measured.seconds:.2f}",
                "mean loss": f"{sum(measured.losses) / len(measured.losses):.2f}",
            }
        else:
            line["measured"] = f"does not fit into {bytes_text(measured.available)}"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def error_text(measured: Measurement) -> str:
    """Return the error of the prediction in percent, or that it is under a hundredth of one."""
    percent = 100 * measured.prediction_error
    return f"{percent:+.2f}%" if abs(percent) >= 0.01 else "under 0.01%"


def differences_from(reference: str, curves: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return each other curve minus the curve called `reference`, step by step."""
    return {
        name: [loss - exact for loss, exact in zip(curve, curves[reference], strict=True)]
        for name, curve in curves.items()
        if name != reference
    }


def storage_table(values: Tensor, stored: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return for each named copy of `values` its errors, and how many values that were not 0 have become 0."""
    magnitudes, lines = values.abs(), {}
    for name, copy in stored.items():
        errors, alive = (copy - values).abs(), magnitudes > 0
        lines[name] = {
            "mean error, of the mean magnitude": f"{float(errors.mean() / magnitudes.mean()):.2%}",
            "median error, of the value": f"{float((errors[alive] / magnitudes[alive]).median()):.2%}",
            "became 0": f"{float((copy[alive] == 0).float().mean()):.1%}",
        }
    return pd.DataFrame(lines).T


def statistics_by_kind(optimizers: Mapping[str, Optimizer], model: nn.Module) -> pd.DataFrame:
    """Return the bytes of the statistics in each optimizer's memory, by kind of tensor, beside those of 32-bit Adam.

    Each of the optimizers trains a copy of `model`.
    """
    embeddings = {id(weight) for weight in embedding_weights(model)}
    kinds = [
        "embeddings" if id(p) in embeddings else
        "small tensors" if p.numel() < QUANTISED_FROM["adamw8bit"] else "matrices"
        for p in model.parameters()
    ]  # fmt: skip
    counts = [p.numel() for p in model.parameters()]
    sizes = {"32 bits": [8 * count for count in counts]}
    for name, optimizer in optimizers.items():
        states = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
        sizes[name] = [
            sum(v.nbytes for key, v in state.items() if isinstance(v, Tensor) and not key.startswith("qmap"))
            for state in states  # all tensors share the two maps
        ]
    table = pd.DataFrame({"parameters": counts} | sizes).groupby(pd.Series(kinds, name="kind")).sum()
    table.loc["all"] = table.sum()
    shown = {name: table[name].map(bytes_text) for name in sizes}
    return pd.DataFrame({"parameters": table["parameters"].map("{:,}".format)} | shown).rename_axis(None)


def loss_curves(
    curves: Mapping[str, Sequence[float] | Mapping[int, float]],
    title: str = "loss, nats per text token",
    is_log: bool = False,
) -> HTML:
    """Return a chart of the losses of several named trainings: of all steps from 1, or by the number of the step.

    With `is_log` the axis has powers of ten, for distances from 0; those of 0 are left out.
    """
    rows = [
        {"step": step, "loss": loss, "training": name}
        for name, losses in curves.items()
        for step, loss in (losses.items() if isinstance(losses, Mapping) else enumerate(losses, 1))
    ]
    scale, axis = alt.Scale(zero=False), alt.Undefined
    if is_log:
        rows = [row | {"loss": abs(row["loss"])} for row in rows if row["loss"]]
        low, high = (math.log10(end(row["loss"] for row in rows)) for end in (min, max))
        powers = [10.0**n for n in range(math.floor(low), math.ceil(high) + 1)]
        scale, axis = alt.Scale(type="log", domain=[powers[0], powers[-1]]), alt.Axis(values=powers, format="~g")
    legend = alt.Legend(orient="bottom", title=None, labelLimit=0, columns=2)
    dashes = alt.StrokeDash("training:N", sort=list(curves), legend=None)
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=220)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("step:Q", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("loss:Q", title=title, scale=scale, axis=axis),
            color=alt.Color("training:N", sort=list(curves), legend=legend),
            strokeDash=dashes if len(curves) > 1 else alt.Undefined,
        )
    )
    return HTML(to_html(chart))


def packing(blocks: Tensor, end: int) -> HTML:
    """Return blocks [blocks, length] of ids as bars whose colour changes from text to text, at each id `end`."""
    pieces, text = [], 0
    for number, block in enumerate(blocks.tolist(), 1):
        start = 0
        for place, token in enumerate(block, 1):
            if token == end or place == len(block):
                pieces.append({"block": number, "start": start, "end": place, "text": f"text {text % 4}"})
                start, text = place, text + (token == end)
    chart = (
        alt.Chart(pd.DataFrame(pieces), width=WIDTH, height=alt.Step(22))
        .mark_bar()
        .encode(
            x=alt.X("start:Q", title="text token"), x2="end:Q", y=alt.Y("block:N", title="block"),
            color=alt.Color("text:N", legend=None),
        )
    )  # fmt: skip
    return HTML(to_html(chart))


def map_chart(maps: Mapping[str, Tensor], values: Tensor) -> HTML:
    """Return a chart of where the positive entries of number maps lie, and below it of how often `values` occur there.

    `values` are magnitudes as shares of their block's scale. All are on one axis, of powers of ten.
    """
    rows = [{"place": float(place), "map": name} for name, table in maps.items() for place in table[table > 0]]
    x = alt.X("place:Q", title="share of the block's largest value", scale=alt.Scale(type="log", domain=[1e-8, 1]))
    ticks = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=alt.Step(34))
        .mark_tick(thickness=1)
        .encode(x=x.axis(None), y=alt.Y("map:N", title=None, sort=list(maps)), color=alt.Color("map:N", legend=None))
    )
    powers = values[values > 0].log10().clamp(-8, -0.01).mul(4).floor().div(4)  # four bars a power of ten
    counts = pd.Series(powers.tolist()).value_counts(normalize=True).sort_index()
    bars = [{"place": 10**low, "end": 10 ** (low + 0.25), "share": share} for low, share in counts.items()]
    found = (
        alt.Chart(pd.DataFrame(bars), width=WIDTH, height=70)
        .mark_bar(color=SERIES[2])
        .encode(
            x=x.axis(alt.Axis(values=[10.0**n for n in range(-8, 1)], format=".0e")),
            x2="end:Q", y=alt.Y("share:Q", title="values", axis=alt.Axis(format="%", tickCount=3)), y2=alt.datum(0),
        )
    )  # fmt: skip
    return HTML(to_html(alt.vconcat(ticks, found, spacing=4)))
