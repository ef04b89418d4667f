"""What `gpu_memory.py` says of its results: slack, context, workspaces, and how far the calculator's points are off."""

from collections.abc import Iterable

from dalle_lib.memory import Estimate, Training, estimate
from dalle_lib.memory.hardware import gpu_of


def report(results: list[dict]) -> dict:
    """Return the comparison of what trainings need with the upper end of the calculator's range, and the constants."""
    measured = [result for result in results if "measured" in result]
    default = [result for result in measured if (result["allocator"], result["workspaces"]) == ("default", "default")]
    machine = machine_of(results)
    shares = {name_of(result): share_of_range(result, machine) for result in measured if is_of(result, "slack")}
    worst = max(shares.values(), default=0.0)
    return {
        "figure": worst, "reference": 1.0, "ratio": worst,
        "memory needed over the range's upper end": shares,
        "points": {
            "default": errors((result for result in measured if is_of(result, "point")), machine),
            "with small workspaces": errors(
                (result for result in measured if is_of(result, "point", workspaces="small")), machine),
        },
        "context": [result for result in results if result["part"] == "context"],
        "contexts of trainings": sorted({context_of(result) for result in measured}),
        "bytes of workspaces": sorted({str(result.get("bytes of workspaces")) for result in default}),
        "slack": {name_of(result): slack_of(result, measured) for result in measured if is_of(result, "slack")},
        "problems": [
            [result["part"], name_of(result), result["problem"]] for result in results if "problem" in result
        ],
        "machine": machine,
    }  # fmt: skip


def points_of(results: list[dict], workspaces: str = "default") -> list[dict]:
    """Return the calculator's points in the form of its table, with today's forecasts."""
    found = []
    for result in results:
        if is_of(result, "point", workspaces=workspaces) and "measured" in result:
            names = "model", "training", "device", "measured", "saved", "statistics"
            point = {name: result[name] for name in names}
            if result["device"] == "cuda":
                point["requested"] = result["free of limits"]["requested"]
            found.append(point | {"predicted": forecast(result, machine_of(results)).allocated})
    return found


def forecast(result: dict, machine: str) -> Estimate:
    """Return today's forecast of what was measured on a `machine`."""
    return estimate(result["model"], Training(**result["training"]), result["device"], gpu_of(machine.split(",")[0]))


def machine_of(results: list[dict]) -> str:
    """Return the machine that was measured."""
    return next((result["machine"] for result in results if "machine" in result), "unknown")


def errors(results: Iterable[dict], machine: str) -> dict[str, str]:
    """Return by how much each forecast is off today: of the peak, of the bytes asked for at it, and of what is kept.

    Where workspaces are small, those that were measured stand in place of the forecast's.
    """
    found = {}
    for result in results:
        said = forecast(result, machine)
        peak, asked = said.allocated, result["free of limits"]["requested"] or result["measured"]
        if result["workspaces"] == "small":
            peak += result["bytes of workspaces"] - said.gpu["library workspaces"]
        pairs = (peak, result["measured"]), (peak, asked), (said.saved, result["saved"])
        shares = [f"{one / max(1, other) - 1:+.2%} ({(one - other) / 1e6:+.1f} MB)" for one, other in pairs]
        found[name_of(result)] = "peak {}, of what was asked for {}, kept {}".format(*shares)
    return found


def share_of_range(result: dict, machine: str) -> float:
    """Return what a training needs, at the least limit within which it ran, over the upper end of the range."""
    return (least(result) + context_of(result)) / forecast(result, machine).gpu_range[1]


def least(result: dict) -> float:
    """Return the bytes of the least limit of reserved memory within which a training ran."""
    trials, free = result.get("limits"), result["free of limits"]
    ran = (
        [trial["share"] for trial in trials if trial["runs"] and trial["share"] is not None]
        if isinstance(trials, list)
        else []
    )
    return (1 + min(ran)) * free["allocated"] if ran else free["reserved"] or result["measured"]


def context_of(result: dict) -> int:
    """Return the bytes that CUDA took beside the allocator at the end of a training; 0 if that is not known."""
    context = result.get("context")
    return context.get("own") or 0 if isinstance(context, dict) else 0


def slack_of(result: dict, results: list[dict]) -> dict[str, float | None]:
    """Return a training's slack in each way, as shares of its peak of tensors."""

    def share(counts: dict | None) -> float | None:
        return counts["reserved"] / counts["allocated"] - 1 if counts and counts.get("allocated") else None

    same = [other for other in results if is_of(other, "slack", allocator="expandable") and same_point(other, result)]
    expandable = same[0]["free of limits"] if same else None
    least_share = least(result) / result["free of limits"]["allocated"] - 1 if result.get("limits") else None
    return {
        "free": share(result["free of limits"]), "emptied": share(result.get("emptied before each step")),
        "expandable": share(expandable), "least": least_share,
    }  # fmt: skip


def is_of(result: dict, part: str, allocator: str = "default", workspaces: str = "default") -> bool:
    """Return whether a result is of a part, measured in this way."""
    return (result["part"], result["allocator"], result["workspaces"]) == (part, allocator, workspaces)


def same_point(one: dict, other: dict) -> bool:
    """Return whether two results are of the same model and training."""
    return (one["model"], one["training"]) == (other["model"], other["training"])


def name_of(result: dict) -> str:
    """Return a result's model and training in words."""
    model = result["model"] if isinstance(result["model"], str) else f"a small {result['model']['model_type']}"
    return ", ".join([model, *(f"{name} {value}" for name, value in result["training"].items())])


def in_one_line(result: dict) -> str:
    """Return what a result says, in a line."""
    said = f"{result.get('seconds of the job', 0):5.1f} s {result['part']:7} {name_of(result)}"
    said += f" [{result['allocator']}, {result['workspaces']}]"
    if "problem" in result:
        return f"{said}: {result['problem'].splitlines()[-1][:200]}"
    if "measured" not in result:
        return said
    slack = slack_of(result, [])
    free, least_share = (f"{slack[name]:.0%}" if slack[name] is not None else "?" for name in ("free", "least"))
    error = result["predicted"] / result["measured"] - 1
    return f"{said}: {result['measured'] / 1e9:.3f} GB ({error:+.1%}), slack {free}, at least {least_share}"
