"""`dalle-lib run plan`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dalle_lib.amounts import figure, length

if TYPE_CHECKING:
    from dalle_lib.planning import Plan

PAPER = "paper"
"""The name by which the paper's run is planned, without a card."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """Tell what a run will take before you invite anybody: seconds, days, traffic, money, and what is the bottleneck.

    For example, five friends to whom the others can connect; docs/planning.md has clients and rented machines:

    dalle-lib run plan paper --machines pc=5,speed=2,up=9,down=9,reduces
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """An embedded run, a folder, or owner/name on the Hub; "paper" is the paper's own run."""
    machines: tuple[str, ...]
    """Groups of equal machines: a name and how many, and for each speed= (samples a second), up= and down= (Mbit/s),
    reduces (others can connect to it), batch=, hours= (a day), starts= (a day), price= (of an hour), gb= (price of 10^9
    bytes sent). Without a speed they are first peers."""
    plot: Path | None = None
    """A file for the plan as a chart: .svg or .png."""
    json: bool = False
    """Print everything as JSON on standard output."""

    def run(self) -> None:
        """Plan, and print what the run takes."""
        from dalle_lib.cli.run.check import taken
        from dalle_lib.planning import Machines, Work, plan_run, reducers_enough, what_if

        if self.plot is not None and self.plot.suffix not in (".svg", ".png"):
            raise ValueError(f"expected --plot to end with .svg or .png, but got {str(self.plot)!r}.")
        machines = [Machines.parse(text) for text in self.machines]
        card = None if self.named == PAPER else self._card()
        plan = plan_run(Work.paper() if card is None else Work.of(card), machines)
        others, enough = what_if(plan), reducers_enough(plan)
        if self.plot is not None:
            self._draw(plan)
        if self.json:
            changes = {words: {"epoch_s": p.epoch_s, "days": p.days, "price": p.price} for words, p in others.items()}
            print(json.dumps(plan.as_dict() | {"reducers_enough": enough, "what_if": changes}))
            return
        print(describe_plan(plan, others, enough))
        if card is not None:
            print(f"Kit:      {taken(card)}.")

    def _card(self):
        from dalle_lib.run import RunCard, hub_token_for

        return RunCard.load(self.named, hub_token_for(self.named))

    def _draw(self, plan: "Plan") -> None:
        from dalle_lib.dashboard.charts import to_png, to_svg
        from dalle_lib.dashboard.plans import plan_chart

        chart = plan_chart(plan)
        if self.plot.suffix == ".png":
            self.plot.write_bytes(to_png(chart))
        else:
            self.plot.write_text(to_svg(chart), encoding="utf-8")


def describe_plan(plan: "Plan", others: dict[str, "Plan"], enough: int | None) -> str:
    """Return a plan in words: time by phase, traffic by group, money, memory, warnings, what would change it."""
    phases = ", ".join(f"{name} {figure(seconds)} s" for name, seconds in plan.phases.items() if seconds)
    lines = [
        f"Epoch:    {plan.epoch_s:,.0f} s: {phases}.",
        f"Run:      {length(plan.total_s)} for {plan.work.epochs:,} epochs of {plan.work.target_batch_size:,} samples.",
        f"Round:    {plan.round_s:,.1f} s; it waits longest for {plan.bottleneck}.",
    ]
    if enough is not None:
        group = next(group for group in plan.machines if group.reduces)
        lines.append(
            f"Reducers: {enough} of {group.name} would be enough, you have {group.count:g}; with more, an epoch is "
            "hardly shorter."
        )
    for group, one in zip(plan.machines, plan.traffic, strict=True):
        epoch = f"{one.sent_per_epoch / 1e6:,.1f} MB sent and {one.received_per_epoch / 1e6:,.1f} MB received an epoch"
        day = f"{figure(one.sent_per_day / 1e9)} and {figure(one.received_per_day / 1e9)} GB a day"
        cost = f"; all cost {one.price:,.2f}" if one.price else ""
        lines.append(f"Each of {group.count:g} {group.name}: {epoch}, {day}{cost}.")
    lines += [f"Money:    {plan.price:,.2f} in all."] if plan.price else []
    if (needed := plan.needed()) is not None:
        gpu, ram, disk = (f"{size / 1e9:.1f}" for size in needed)
        lines.append(
            f"Trainer:  up to {gpu} GB on a GPU at batch 1, up to {ram} GB of RAM, {disk} GB of disk for its state."
        )
    lines += [f"Warning:  {warning}" for warning in plan.warnings]
    lines += [
        f"With {words}: {other.epoch_s:,.0f} s an epoch, {length(other.total_s)}." for words, other in others.items()
    ]
    return "\n".join(lines)
