"""Charts of a run."""

import altair as alt
import pandas as pd

WIDTH = 560
LOSS_COLOUR = "#3b6fb6"
PEERS_COLOUR = "#d9822b"


def run_chart(epochs: pd.DataFrame) -> alt.VConcatChart:
    """Return the objective and the number of active participants over the epochs of `epochs_of`."""
    data = epochs.assign(epoch=epochs["epoch"].astype(int))
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1))
    loss = (
        alt.Chart(data, width=WIDTH, height=180, title="Training objective")
        .mark_line(color=LOSS_COLOUR, point=True)
        .encode(x=x, y=alt.Y("loss:Q", title="loss, nats per token", scale=alt.Scale(zero=False)))
    )
    peers = (
        alt.Chart(data, width=WIDTH, height=90, title="Active participants")
        .mark_line(color=PEERS_COLOUR, interpolate="step-after")
        .encode(x=x, y=alt.Y("peers:Q", title="peers", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(domainMin=0)))
    )
    return alt.vconcat(loss, peers)


def to_svg(chart: alt.TopLevelMixin) -> str:
    """Return a chart as SVG text that needs no script and no network."""
    import vl_convert

    return vl_convert.vegalite_to_svg(chart.to_json())


def to_png(chart: alt.TopLevelMixin, scale: float = 2.0) -> bytes:
    """Return a chart as a PNG file."""
    import vl_convert

    return vl_convert.vegalite_to_png(chart.to_json(), scale=scale)
