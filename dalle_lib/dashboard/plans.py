"""A plan as a chart: where an epoch's time goes, and what each machine sends and receives."""

import altair as alt
from IPython.display import HTML

from dalle_lib.dashboard.charts import SERIES, WIDTH, to_html
from dalle_lib.planning import Plan


def planned(plan: Plan) -> HTML:
    """Return a plan for a page: a sentence, and its chart."""
    hours = plan.days * 24
    length = (
        f"{hours * 60:.0f} minutes" if hours < 2 else f"{hours:.0f} hours" if hours < 48 else f"{plan.days:.0f} days"
    )
    return HTML(f"<p>{plan.epoch_s:,.0f} s an epoch, {length} in all.</p>{to_html(plan_chart(plan))}")


def plan_chart(plan: Plan) -> alt.VConcatChart:
    """Return the seconds of an epoch by phase, and the megabytes of an epoch of one machine of each group."""
    phases = [{"phase": name, "seconds": seconds} for name, seconds in plan.phases.items()]
    traffic = [
        {"machines": one.name, "way": way, "megabytes": size / 1e6}
        for one in plan.traffic
        for way, size in (("sent", one.sent_per_epoch), ("received", one.received_per_epoch))
    ]
    seconds = (
        alt.Chart(alt.Data(values=phases), width=WIDTH, title=f"An epoch: {plan.epoch_s:,.0f} s")
        .mark_bar(color=SERIES[0])
        .encode(x=alt.X("seconds:Q", title="seconds"), y=alt.Y("phase:N", sort=list(plan.phases), title=None))
    )
    megabytes = (
        alt.Chart(alt.Data(values=traffic), width=WIDTH, title="Traffic of one machine in an epoch")
        .mark_bar()
        .encode(
            x=alt.X("megabytes:Q", title="MB"),
            y=alt.Y("machines:N", sort=None, title=None),
            yOffset="way:N",
            color=alt.Color("way:N", title=None, scale=alt.Scale(domain=["sent", "received"], range=list(SERIES[:2]))),
        )
    )
    return alt.vconcat(seconds, megabytes)
