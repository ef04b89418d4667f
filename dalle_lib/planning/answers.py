"""Questions about a plan: how many reducers would be enough, and what other settings would change."""

from dataclasses import replace

from dalle_lib.planning.constants import UP_BITS
from dalle_lib.planning.plan import Plan, phases_where, plan_run

SPARED = 0.05
"""Reducers are enough if any number of them makes epochs shorter by less than this part."""
MAX_REDUCERS = 256


def reducers_enough(plan: Plan) -> int | None:
    """Return how many machines of the first group that reduces would be enough: with more, epochs are hardly shorter.

    Of the group as it is, the others do not reduce; beyond it, there are more such machines. All compute as much as in
    the plan, also then. None if no group reduces.
    """
    found = next((index for index, group in enumerate(plan.machines) if group.reduces), None)
    if found is None:
        return None
    group = plan.machines[found]

    def epoch_s(count: int) -> float:
        machines = list(plan.machines)
        machines[found] = replace(group, count=count)
        if count < group.count:
            machines.append(replace(group, count=group.count - count, reduces=False))
        return sum(phases_where(plan.work, plan.machines, tuple(machines)).values())

    times = [epoch_s(count) for count in range(1, MAX_REDUCERS + 1)]
    return next(count for count in range(1, MAX_REDUCERS + 1) if (1 - SPARED) * times[count - 1] <= min(times))


def what_if(plan: Plan) -> dict[str, Plan]:
    """Return plans of the same run with one thing changed each, by what that is in words."""
    work = plan.work
    many = 8
    bits = 8 if work.up_bits < 8 else 4
    changes = {
        f"{bits} bits a value on the way up (upload_bits)": {"up_bits": UP_BITS[bits]},
        "delayed averaging: peers compute on meanwhile": {"delayed": "averaging", "strategy": "gradients"},
        f"local updates, averaged after {many} times the samples": {
            "strategy": "local", "delayed": False, "target_batch_size": many * work.target_batch_size,
            "epochs": -(-work.epochs // many),
        },
    }  # fmt: skip
    return {words: plan_run(work.with_changes(**change), plan.machines) for words, change in changes.items()}
