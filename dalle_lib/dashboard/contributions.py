"""How much each peer's gradients counted, round by round."""

import altair as alt
import pandas as pd
from IPython.display import HTML

from dalle_lib.dashboard.charts import SERIES, WIDTH, to_html
from dalle_lib.dashboard.tables import sentence
from dalle_lib.swarm import Crew, Peer
from dalle_lib.swarm.process.history import counted_rounds, shares_in

OTHERS = "(all others)"
"""The name under which the peers that have no colour of their own are added up."""
MAX_ROUNDS = 40
"""The chart shows this many rounds, the last ones."""


def contributions(you: Peer, crew: Crew) -> HTML:
    """Return a sentence on whose gradients your rounds with others hold, and a chart with a bar for each round.

    A peer's weight in a round is the number of samples that its gradient was computed from.
    """
    counted = counted_rounds(you, crew.peers.values())
    if counted.empty:
        return sentence("There is nothing to show yet: your peer has not finished a round of averaging with others.")
    own = next(event["name"] for event in you.events() if event["event"] == "joined")
    counted = largest(counted, own, len(SERIES))
    held = ", ".join(f"{name} {share:.0%}" for name, share in shares_in(counted).mean().items())
    told = sentence(f"Rounds with others in which your peer counted: {len(counted)}. Mean shares of them: {held}.")
    return HTML(told.data + to_html(contributions_chart(counted)))


def contributions_chart(counted: pd.DataFrame) -> alt.Chart:
    """Return stacked bars: a bar for each of the last rows of `counted` (an epoch), a colour for each column (a peer).

    `counted` has samples, and at most as many columns as there are colours in SERIES.
    """
    names = list(counted.columns)
    which = f"each of the last {MAX_ROUNDS} rounds" if len(counted) > MAX_ROUNDS else "each round"
    data = counted.iloc[-MAX_ROUNDS:].rename_axis(index="epoch", columns="peer").stack().rename("samples").reset_index()
    data = data[data["samples"] > 0].assign(place=data["peer"].map(names.index))
    colours = alt.Scale(domain=names, range=list(SERIES[: len(names)]))
    return (
        alt.Chart(data, width=WIDTH, height=140, title=f"Samples that counted in {which}")
        .mark_bar()
        .encode(
            x=alt.X("epoch:O", title="epoch", axis=alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=6)),
            y=alt.Y("samples:Q", title="samples"),
            color=alt.Color("peer:N", title=None, scale=colours, legend=alt.Legend(symbolType="square")),
            order=alt.Order("place:Q"),
        )
    )


def largest(counted: pd.DataFrame, own: str, max_count: int) -> pd.DataFrame:
    """Return your `own` column, then the columns with the most samples, `max_count` in all; the last adds up the rest.

    With no more columns than `max_count`, each stays as it is.
    """
    others = counted.drop(columns=own, errors="ignore")
    order = [name for name in (own,) if name in counted] + list(others.sum().sort_values(ascending=False).index)
    if len(order) <= max_count:
        return counted[order]
    return counted[order[: max_count - 1]].assign(**{OTHERS: counted[order[max_count - 1 :]].sum(axis=1)})
