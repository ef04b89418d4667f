"""How long a run's epochs are for the volunteers expected, and what each size of a card follows from, in words."""

import math
from dataclasses import dataclass

from dalle_lib.amounts import figure, length
from dalle_lib.model import ModelConfig
from dalle_lib.planning import Machines, Plan, Work, plan_run, reducers_enough
from dalle_lib.planning.constants import (
    CORE_OPERATIONS_PER_S,
    GPU_OPERATIONS_PER_S,
    HOME_DOWN_MBPS,
    HOME_UP_MBPS,
    LOOK_EVERY_S,
    LOOK_S_PER_PEER,
    REACHED,
)
from dalle_lib.planning.faults import too_many
from dalle_lib.run import RunCard
from dalle_lib.run.sizes import SMALL_GRID

LOOKS = 3
"""How often each peer looks for others while a group assembles, at least: with many peers, looks are further apart."""
MIN_MATCHMAKING_S = 3.0
"""Seconds in which a few peers find each other, as in `emoji-mini`."""
MIN_EPOCHS = 100
"""Fewer epochs than this are no training, however large they are."""
MAX_BATCH_FACTOR = 8
"""A batch is at most this many times the preset's: larger ones were not tried with its learning rate."""


@dataclass(frozen=True)
class Reason:
    """One number of a card, and what it follows from."""

    field: str
    value: str
    why: str


def samples_per_second(model: ModelConfig) -> tuple[float, str]:
    """Return how many samples a volunteer is assumed to compute in a second, and on what.

    Models of small pictures are for a processor core, others for a GPU.
    """
    attention = 4 * model.dim * model.heads * model.dim_head
    of_a_position = model.depth * (attention + 12 * model.dim**2) + model.image_vocab * model.dim
    operations = (model.text_part + model.image_length) * of_a_position
    if model.grid <= SMALL_GRID:
        return CORE_OPERATIONS_PER_S / operations, "a processor core"
    return GPU_OPERATIONS_PER_S / operations, "a GPU"


def expected(model: ModelConfig, volunteers: int) -> list[Machines]:
    """Return machines that are assumed of so many volunteers: home links, and some to whom others can connect."""
    speed, _ = samples_per_second(model)
    link = {"samples_per_second": speed, "up_mbps": HOME_UP_MBPS, "down_mbps": HOME_DOWN_MBPS}
    reducers = max(1, round(REACHED * volunteers))
    reached = Machines(name="who can be reached", count=reducers, reduces=True, **link)
    if volunteers == reducers:
        return [reached]
    return [reached, Machines(name="behind routers", count=volunteers - reducers, **link)]


def plan_for(card: RunCard, volunteers: int) -> Plan:
    """Return the plan of a run with the machines that are `expected` of so many volunteers."""
    return plan_run(Work.of(card), expected(card.model, volunteers))


def matchmaking_for(volunteers: int) -> float:
    """Return the seconds in which so many peers find each other, at least."""
    return max(MIN_MATCHMAKING_S, float(math.ceil(LOOKS * max(LOOK_EVERY_S, LOOK_S_PER_PEER * volunteers))))


def useful(card: RunCard, volunteers: int) -> int:
    """Return how many of so many volunteers a run can use: with more, they look for each other longer than compute."""
    alone_s = card.averaging.target_batch_size / samples_per_second(card.model)[0]
    return next((n for n in range(volunteers, 1, -1) if alone_s / n >= matchmaking_for(n)), 1)


def sized_for(card: RunCard, volunteers: int) -> RunCard:
    """Return a card whose epochs suit so many volunteers.

    Peers have the time to find each other, an epoch takes at least as long to compute as to average, and a round fits
    `timeout_s` with links of half the rate. The run sees as many samples as before, in at least MIN_EPOCHS epochs.
    """
    averaging, optimizer = card.averaging, card.optimizer
    matchmaking_s = max(averaging.matchmaking_s, matchmaking_for(volunteers))
    longest_s = max(averaging.search_s, 2 * matchmaking_s)
    round_s = plan_for(card, volunteers).round_s
    computing_s = max(2 * matchmaking_s, round_s)
    samples = optimizer.total_epochs * averaging.target_batch_size
    wanted = volunteers * samples_per_second(card.model)[0] * computing_s
    largest = min(MAX_BATCH_FACTOR * averaging.target_batch_size, samples // MIN_EPOCHS)
    batch = max(averaging.target_batch_size, min(64 * math.ceil(wanted / 64), largest))
    epochs = max(MIN_EPOCHS, math.ceil(samples / batch))
    warmup = max(5, round(optimizer.warmup_epochs * epochs / optimizer.total_epochs))
    timeout_s = max(averaging.timeout_s, float(10 * math.ceil(4 * round_s / 10)), 2 * longest_s)
    times = {"matchmaking_s": matchmaking_s, "longest_matchmaking_s": longest_s, "timeout_s": timeout_s}
    return card.with_changes(
        averaging=averaging.model_copy(update={"target_batch_size": batch, **times}),
        optimizer=optimizer.model_copy(update={"total_epochs": epochs, "warmup_epochs": warmup}),
    )


def reasons(card: RunCard, rows: int, volunteers: int | None = None) -> list[Reason]:
    """Return what each number of a card follows from: its data, the calculator, and the plan for so many volunteers."""
    model, optimizer, averaging = card.model, card.optimizer, card.averaging
    work = Work.of(card)
    gpu, ram, disk = (size / 1e9 for size in needs_of(card))
    shape = f"{model.depth} blocks of {model.dim}, {model.heads} heads of {model.dim_head}"
    told = [
        Reason("model", shape, f"{work.parameters:,} parameters; a trainer needs up to {gpu:.1f} GB on a GPU at "
               f"batch 1, or {ram:.1f} GB of RAM, and {disk:.2g} GB of disk (calculator)"),
        Reason("model.grid", f"{model.grid}x{model.grid} codes of {model.image_vocab:,}", "as the data have them"),
        Reason("model.text_length", f"{model.text_length} text tokens of {model.text_vocab:,}",
               "99 of 100 captions have room"),
        Reason("optimizer.total_epochs", f"{optimizer.total_epochs:,} of {averaging.target_batch_size:,} samples",
               f"{passes_of(card, rows):,.1f} passes over {rows:,} rows"),
        Reason("optimizer.lr", f"{optimizer.lr:g}", f"the preset's; it rises for {optimizer.warmup_epochs:,} epochs"),
    ]  # fmt: skip
    return told + (_of_the_plan(card, volunteers) if volunteers else [])


def _of_the_plan(card: RunCard, volunteers: int) -> list[Reason]:
    """Return the numbers that follow from how many volunteers are expected."""
    averaging, plan = card.averaging, plan_for(card, volunteers)
    speed, machine = samples_per_second(card.model)
    computing, enough = plan.phases["computing"], reducers_enough(plan)
    busiest = max(plan.traffic, key=lambda traffic: traffic.sent_per_epoch)
    is_too_few = enough > plan.machines[0].count
    more = f"up to {enough} who can be reached shorten it" if is_too_few else f"{enough} who can be reached are enough"
    return [
        Reason("volunteers", f"{volunteers:,}", f"assumed: {speed:,.2g} samples a second each on {machine}, "
               f"{HOME_UP_MBPS:g} Mbit/s up and {HOME_DOWN_MBPS:g} down, {plan.machines[0].count:g} of them can be "
               "reached; `dalle-lib run plan` takes what you know"),
        Reason("averaging.target_batch_size", f"{averaging.target_batch_size:,}",
               f"they compute an epoch in {length(computing)} and average it in {length(plan.round_s)}"),
        Reason("averaging.matchmaking_s", f"{averaging.matchmaking_s:g}",
               f"in which each of {volunteers:,} peers looks for the others {LOOKS} times or more"),
        Reason("averaging.longest_matchmaking_s", f"{averaging.search_s:g}",
               "for which a round waits for peers that compute in its epoch and come late"),
        Reason("averaging.timeout_s", f"{averaging.timeout_s:g}",
               f"a round takes {length(plan.round_s)}, and one on half of these rates must still fit in half of it"),
        Reason("plan", f"{length(plan.epoch_s)} an epoch, {length(plan.total_s)} in all",
               f"whoever sends most sends {traffic(busiest.sent_per_epoch)} an epoch; {more}"),
        *_warnings(card, plan, volunteers),
    ]  # fmt: skip


def _warnings(card: RunCard, plan: Plan, volunteers: int) -> list[Reason]:
    """Return what would go wrong; that the data are too few for so many people is said in place of raising a size."""
    computing_s, enough = plan.phases["computing"], useful(card, volunteers)
    if enough < volunteers:
        many = too_many(volunteers)
        told = [] if many is None else [many.rstrip(".")]
        told.append(
            f"{volunteers:,} volunteers are more than this run can use: they would look for each other longer than "
            f"they compute. About {enough:,} are enough; more data or larger epochs keep more of them busy"
        )
    else:
        told = [warning.rstrip(".") for warning in plan.warnings]
        if plan.round_s > 1.1 * computing_s:
            told.append(
                "they average longer than they compute: more volunteers who can be reached, or a rented machine with "
                "a fast link that trains and reduces, make epochs shorter"
            )
    return [Reason("warning", "", why) for why in told]


def traffic(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{figure(size / 1e6)} MB"


def needs_of(card: RunCard) -> tuple[int, int, int]:
    """Return the most bytes that a trainer needs on a GPU at batch 1, in RAM, and on disk, by the calculator."""
    alone = Machines(name="one", samples_per_second=1.0, up_mbps=1.0, down_mbps=1.0)
    return plan_run(Work.of(card), [alone]).needed()


def passes_of(card: RunCard, rows: int) -> float:
    """Return how often a run sees each row of its data."""
    return card.optimizer.total_epochs * card.averaging.target_batch_size / rows
