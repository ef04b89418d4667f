"""What would go wrong in a run as planned, in words."""

from dalle_lib.amounts import figure
from dalle_lib.planning.constants import GROUP_HOLDS, ONE_GROUP, ROUND_START_S
from dalle_lib.planning.machines import Machines
from dalle_lib.planning.work import Work

GROUPS = "docs/averaging.md#how-many-peers-one-group-can-have"
"""Where it is told what one group can hold."""


def too_many(trainers: float) -> str | None:
    """Return what so many trainers at a time come to if one group loses some even of fewer, else None."""
    like = max([size for size in GROUP_HOLDS if size <= trainers] or [1])
    if GROUP_HOLDS.get(like, 1.0) == 1:
        return None
    told = (
        f"{trainers:,.0f} trainers at a time: one group holds about {ONE_GROUP}, and of {like:,} in a simulation "
        f"{GROUP_HOLDS[like]:.0%} averaged together ({GROUPS})."
    )
    return f"{told} Let fewer in, or begin another run." if trainers > ONE_GROUP else told


def what_goes_wrong(
    work: Work, machines: tuple[Machines, ...], round_s: float, phases: dict[str, float]
) -> tuple[str, ...]:
    """Return a sentence for each thing that would go wrong; `round_s` are the seconds of a round."""
    trainers = sum(group.online for group in machines if group.trains)
    computing = figure(phases["computing"])
    told = [] if (many := too_many(trainers)) is None else [many]
    if round_s > work.timeout_s / 2:
        told.append(
            f"A round takes {round_s:,.0f} s, and who lets others wait for {work.timeout_s / 2:g} s is left out: raise "
            "timeout_s in run.json before you publish it, or let peers with slow links send less."
        )
    if phases["matchmaking"] > ROUND_START_S:
        told.append(
            f"Peers compute an epoch in {computing} s, less than matchmaking_s, {work.matchmaking_s:g}: raise "
            "target_batch_size."
        )
    slow = [
        group
        for group in machines
        if group.trains and group.batch_size / group.samples_per_second > phases["computing"] / 2
    ]
    told += [
        f"One batch of {group.name} takes {figure(group.batch_size / group.samples_per_second)} s, and all wait for it "
        f"at the end of an epoch of {computing} s: such machines need a smaller batch or more speed."
        for group in slow
    ]
    return tuple(told)
