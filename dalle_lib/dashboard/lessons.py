"""Pictures of the tutorial: what was measured, how text is packed, what block-wise quantisation does."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd
from IPython.display import HTML
from torch import Tensor

from dalle_lib.dashboard.bars import bars_html, memory_bars
from dalle_lib.dashboard.charts import WIDTH, to_html
from dalle_lib.measurement import Measurement
from dalle_lib.memory import estimate

Ladder = Sequence[tuple[str, Measurement]]

REST = "gradients, activations and the rest"


def ladder(rows: Ladder, config: str | Mapping) -> HTML:
    """Return the table and the bars of measurements, one technique after another, beside what was predicted.

    `config` is the model's preset name or Hub config.
    """
    bars = []
    for name, measured in rows:
        predicted = estimate(config, measured.training, "cuda" if measured.device == "cuda" else "cpu")
        bars.append((f"{name}: predicted", predicted.tensors))
        if measured.fits:
            bars.append((f"{name}: measured", measured_terms(measured)))
    return HTML(ladder_table(rows).to_html(index=False, border=0) + bars_html(memory_bars(bars)))


def measured_terms(measured: Measurement) -> dict[str, int]:
    """Return the measured peak by what can be told apart."""
    parts = {"weights": measured.weights}
    if measured.training.keeps_state:
        parts["optimizer state"] = measured.statistics
    return parts | {REST: measured.peak - sum(parts.values())}


def ladder_table(rows: Ladder) -> pd.DataFrame:
    """Return what each technique took: MB predicted and measured, statistics, seconds a step, loss."""
    lines = []
    for name, measured in rows:
        line = {"training": name, "predicted, MB": f"{measured.predicted / 1e6:,.1f}"}
        if measured.fits:
            line |= {
                "measured, MB": f"{measured.peak / 1e6:,.1f}",
                "error": f"{measured.prediction_error:+.1%}",
                "statistics, MB": f"{measured.statistics / 1e6:,.1f}",
                "seconds a step": f"{measured.seconds:.2f}",
                "mean loss": f"{sum(measured.losses) / len(measured.losses):.3f}",
            }
        else:
            line["measured, MB"] = f"needs {measured.predicted / 1e6:,.0f}, has {measured.available / 1e6:,.0f}"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def loss_curves(curves: Mapping[str, Sequence[float]], title: str = "loss, nats per token") -> HTML:
    """Return the losses of several trainings over their steps."""
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
    """Return blocks of tokens [blocks, length] as bars, in turns of colour from text to text; `end` parts texts."""
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
            x=alt.X("start:Q", title="token"), x2="end:Q", y=alt.Y("block:N", title="block"),
            color=alt.Color("text:N", legend=None),
        )
    )  # fmt: skip
    return HTML(to_html(chart))


def quantisation(values: Tensor, block: int) -> HTML:
    """Return values, and how far 8 bits put each off: with one scale for all, and with one for each block."""
    from dalle_lib.optimizer.blockwise import dequantize, quantize

    rows = []
    for name, size in (("one scale for all", len(values)), (f"a scale for each block of {block}", block)):
        off = (dequantize(*quantize(values, signed=True, block=size), signed=True, block=size) - values).abs()
        rows += [{"value": i, "size": float(error), "what": f"error, {name}"} for i, error in enumerate(off)]
        print(f"{name}: mean error {float(off.mean() / values.abs().mean()):.2%} of the mean magnitude")
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
