"""Questions about a plan: how many reducers are enough, and what other settings would change."""

from dataclasses import replace

from dalle_lib.planning.constants import UP_BITS
from dalle_lib.planning.plan import Plan, plan_run

GAIN = 0.02
"""A further reducer that makes epochs shorter by less than this part is none too many saved."""
MAX_REDUCERS = 256


def reducers_enough(plan: Plan) -> int | None:
    """Return how many machines of the first group that reduces are enough: one more saves less than 2% of an epoch.

    None if no group reduces. Other groups stay as they are.
    """
    found = next((index for index, group in enumerate(plan.machines) if group.reduces), None)
    if found is None:
        return None

    def epoch_s(count: int) -> float:
        machines = list(plan.machines)
        machines[found] = replace(machines[found], count=count)
        return plan_run(plan.work, machines).epoch_s

    return next((n for n in range(1, MAX_REDUCERS) if epoch_s(n + 1) > (1 - GAIN) * epoch_s(n)), MAX_REDUCERS)


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
