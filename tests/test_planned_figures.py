"""The figures of plans that documents show are what the planner and the simulation tell."""

import json
import re
import shlex

from checkout import ROOT

from dalle_lib.planning import Machines, Work, plan_run
from dalle_lib.planning.constants import GROUP_HOLDS, ONE_GROUP

ORGANISER = (ROOT / "docs/organiser.md").read_text()
AVERAGING = (ROOT / "docs/averaging.md").read_text()
SIMULATED = json.loads((ROOT / "benchmarks/results/scale.json").read_text())["rows"]
COSTS = ORGANISER[ORGANISER.index("## Costs and sizes") : ORGANISER.index("## Keys")]


def cells(text: str, first: str) -> list[str]:
    """Return the cells after the first one, of the line of a table that begins with it."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_costs_that_organisers_read_are_those_of_the_command_above_them():
    command = shlex.split(re.search(r"^dalle-lib run plan paper --machines (.*)$", COSTS, re.M)[1])
    machines = [Machines.parse(text) for text in command]
    plan = plan_run(Work.paper(), machines)
    home, vm, first = plan.traffic
    for label, one in ("a first peer", first), ("each of two", vm), ("each volunteer", home):
        sent, received = cells(COSTS, label)
        assert sent == f"{one.sent_per_day / 1e9:.0f} GB"
        assert received == (f"{one.received_per_day / 1e9:.0f} GB" if one.received_per_day >= 1e9 else "less than 1 GB")
    dearer = plan_run(Work.paper(), [Machines.parse(text.replace("gb=0.01", "gb=0.10")) for text in command])
    told = " ".join(COSTS.split())
    assert f"An epoch takes {plan.epoch_s / 60:.0f} minutes and all 31,250 of them {plan.days:.0f} days" in told
    assert f"that is {plan.price:,.0f} of your money, {vm.price:,.0f} of it for the two that average" in told
    assert f"these two cost {dearer.traffic[1].price:,.0f}:" in told


def test_what_one_group_holds_is_what_was_simulated():
    assert {int(size): round(row["together"], 2) for size, row in SIMULATED.items()} == GROUP_HOLDS
    assert max(size for size, part in GROUP_HOLDS.items() if part >= 0.8) == ONE_GROUP


def test_the_sizes_that_organisers_read_are_those_that_were_simulated():
    for size in 20, 60, 100, 400:
        row = SIMULATED[str(size)]
        assert cells(COSTS, f"{size} |") == [f"{row['together']:.0%}", f"{row['overhead']:.0%}"]


def test_the_table_of_one_group_is_what_was_simulated():
    table = AVERAGING[AVERAGING.index("## How many peers one group can have") :]
    assert cells(table, "| 20") == [f"{int(size):,}" for size in SIMULATED]
    rows = {"seconds in which they compute an epoch": "computing_s", "seconds of a round": "round_s"}
    for label, name in rows.items():
        assert cells(table, label) == [f"{row[name]:,.0f}" for row in SIMULATED.values()]
    for label, name in {"peers that average together": "together", "share of the time": "overhead"}.items():
        assert cells(table, label) == [f"{row[name]:.0%}" for row in SIMULATED.values()]
