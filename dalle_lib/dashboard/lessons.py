"""Tables and charts of the tutorial: measurements, losses, packed text, and the effect of block-wise quantisation."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd
from IPython.display import HTML
from torch import Tensor

from dalle_lib.dashboard.bars import bars_html, bytes_text, memory_bars
from dalle_lib.dashboard.charts import WIDTH, to_html
from dalle_lib.measurement import Measurement
from dalle_lib.memory import estimate

REST = "gradients, activations and the rest"


def ladder(measurements: Mapping[str, Measurement], config: str | Mapping) -> HTML:
    """Return a table and bars of named measurements, each beside the calculator's prediction.

    `config` is the measured model: the name of a preset, or the fields of a Hub config.
    """
    bars = []
    for name, measured in measurements.items():
        predicted = estimate(config, measured.training, "cuda" if measured.device == "cuda" else "cpu")
        bars.append((f"{name}: predicted", predicted.tensors))
        if measured.fits:
            bars.append((f"{name}: measured", measured_terms(measured)))
    return HTML(ladder_table(measurements).to_html(index=False, border=0) + bars_html(memory_bars(bars)))


def measured_terms(measured: Measurement) -> dict[str, int]:
    """Return the bytes of the measured peak by term, as far as a measurement can tell the terms apart."""
    parts = {"weights": measured.weights}
    if measured.training.keeps_state:
        parts["optimizer state"] = measured.statistics
    return parts | {REST: measured.peak - sum(parts.values())}


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
    """Return the error of the prediction in percent: an error that one digit cannot show is "under 0.1%"."""
    error = measured.prediction_error
    return f"{error:+.1%}" if abs(error) >= 0.001 else "under 0.1%"


def losses_of(measurements: Mapping[str, Measurement]) -> dict[str, list[float]]:
    """Return the losses of each measurement that fitted."""
    return {name: measured.losses for name, measured in measurements.items() if measured.fits}


def distances_from(reference: str, curves: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return how far each other curve is from the curve called `reference`, step by step; nothing if it is missing."""
    return {
        name: [abs(loss - exact) for loss, exact in zip(curve, curves[reference], strict=False)]
        for name, curve in curves.items()
        if name != reference and reference in curves
    }


def statistics_table(measurements: Mapping[str, Measurement], distances: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Return for each measurement the bytes of its statistics, and its mean distance if it has distances."""
    lines = [
        {
            "training": name,
            "statistics": bytes_text(measured.statistics) if measured.fits else measured.error,
            "mean distance, nats": f"{sum(gaps) / len(gaps):.1g}" if (gaps := distances.get(name)) else "",
        }
        for name, measured in measurements.items()
    ]
    return pd.DataFrame(lines)


def loss_curves(curves: Mapping[str, Sequence[float]], title: str = "loss, nats per text token") -> HTML:
    """Return a chart of the losses of several named trainings over their steps."""
    rows = [
        {"step": step, "loss": loss, "training": name}
        for name, losses in curves.items() for step, loss in enumerate(losses, 1)
    ]  # fmt: skip
    legend = alt.Legend(orient="bottom", title=None, labelLimit=0)
    dashes = alt.StrokeDash("training:N", sort=list(curves), legend=None)
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=220)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("step:Q", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("loss:Q", title=title, scale=alt.Scale(zero=False)),
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


def quantisation(values: Tensor, block: int) -> HTML:
    """Return a chart of values and of their errors in 8 bits, with one scale for all and with one for each `block`.

    The mean errors are printed.
    """
    from dalle_lib.optimizer.blockwise import dequantize, quantize

    rows = []
    for name, size in (("one scale for all", len(values)), (f"a scale for each block of {block}", block)):
        off = (dequantize(*quantize(values, signed=True, block=size), signed=True, block=size) - values).abs()
        rows += [{"value": i, "size": float(error), "what": f"error, {name}"} for i, error in enumerate(off)]
        print(f"{name}: the mean error is {float(off.mean() / values.abs().mean()):.1%} of the mean magnitude")
    rows += [{"value": i, "size": float(v.abs()), "what": "magnitude"} for i, v in enumerate(values)]
    edges = alt.Axis(values=list(range(0, len(values) + 1, block)))
    header = alt.Header(labelOrient="top", labelAnchor="start")
    chart = (
        alt.Chart(pd.DataFrame(rows), width=WIDTH, height=90)
        .mark_bar(width=1)
        .encode(
            x=alt.X("value:Q", title="place in the tensor", axis=edges),
            y=alt.Y("size:Q", title=None),
            row=alt.Row("what:N", title=None, sort=["magnitude"], header=header),
        )
        .resolve_scale(y="independent")
    )
    return HTML(to_html(chart))
