"""What is told of simulated runs: a row for each size, and beyond which size one flat group fails."""

from collections.abc import Sequence
from statistics import mean

from dalle_lib.planning.constants import INTRODUCTION_BYTES, PROGRESS_BYTES
from dalle_lib.swarm.wire import MAX_BYTES, MAX_RECEIVED_BYTES
from scaling.outcome import Outcome
from scaling.swarm import Scenario

TOGETHER, IN_VAIN, WAITING = 0.9, 0.01, 0.5
"""One flat group fails where fewer of the peers are in it, more looks find nothing, or more time is spent waiting."""


def row(scenario: Scenario, outcomes: Sequence[Outcome], planned_s: float) -> dict:
    """Return the numbers of runs of one size: means, of bytes for an epoch."""

    def over(of) -> float:
        return mean(map(of, outcomes))

    epochs = [epoch for outcome in outcomes for epoch in outcome.epochs]
    roles = {role for outcome in outcomes for role in outcome.sent}
    return {
        "matchmaking_s": scenario.work.matchmaking_s, "timeout_s": scenario.work.timeout_s,
        "target_batch_size": scenario.work.target_batch_size, "seconds": over(lambda one: one.mean("seconds")),
        "planned_s": planned_s, "overhead": over(lambda one: one.overhead),
        "computing_s": over(lambda one: one.mean("computing_s")),
        "until_round_s": over(lambda one: one.mean("matchmaking_s")),
        "round_s": over(lambda one: one.mean("averaging_s")),
        "rounds_s": [float(epoch.averaging_s) for epoch in epochs],
        "together": mean(epoch.largest * epoch.told / epoch.present for epoch in epochs),
        "group_count": mean(epoch.group_count for epoch in epochs),
        "knew_in_time": mean(epoch.told for epoch in epochs),
        "whole_rounds": mean(epoch.is_whole for epoch in epochs),
        "sent": {role: over(lambda one, role=role: one.sent.get(role, 0.0)) for role in sorted(roles)},
        "received": {role: over(lambda one, role=role: one.received.get(role, 0.0)) for role in sorted(roles)},
        "purpose": {name: over(lambda one, name=name: one.parts[name]) for name in outcomes[0].parts},
        "looks_in_vain": over(lambda one: one.looks_vain), "look_s": over(lambda one: one.look_s),
        "busiest_holder_mbps": over(lambda one: one.busiest_holder_mbps),
        "its_link_mbps": over(lambda one: one.busiest_holder_of_mbps),
        "newcomers": over(lambda one: one.joins),
        "state_s": mean(took) if (took := [one.state_s for one in outcomes if one.joins and one.state_s]) else None,
        "states_failed": over(lambda one: one.states_failed), "work_s": over(lambda one: one.work_s),
    }  # fmt: skip


def ends(rows: dict[str, dict]) -> dict:
    """Return the smallest simulated size at which one flat group fails in each way, None if none does.

    Messages have a longest size besides: beyond so many peers none of their kind can be read.
    """

    def first(fails) -> int | None:
        return next((int(peers) for peers, one in rows.items() if fails(one)), None)

    return {
        "fewer than 90% in one group": first(lambda one: one["together"] < TOGETHER),
        "more than 1% of looks in vain": first(lambda one: one["looks_in_vain"] > IN_VAIN),
        "more waiting than computing": first(lambda one: one["overhead"] > WAITING),
        "no round is whole": first(lambda one: one["whole_rounds"] == 0),
        "most peers whose progress can be read": MAX_BYTES // PROGRESS_BYTES,
        "most peers in a leader's message": MAX_RECEIVED_BYTES // INTRODUCTION_BYTES,
    }
