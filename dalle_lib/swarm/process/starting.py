"""From a peer's start to its first gradient that counts: the steps, what each is expected to take, and what it took."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a peer's start."""

    name: str
    ends_with: str
    """The event at which it is over."""
    typical_s: float
    """Seconds that it took with `emoji-mini`, about: the middle of six starts of peers that shared two cores of a
    Xeon of 2.5 GHz (dev/DECISIONS.md, 2026-11-26). Trials may take as long as they are given."""


LOAD = Step("load the model and the data", "loaded", 8.5)
CONNECT = Step("connect to the others", "connected", 1.6)
TAKE_OVER = Step("take over the others' state", "joined", 2.9)
TRIALS = Step("try what computes fastest", "computing", 3.0)
FIRST_BATCH = Step("compute the first batch", "computed", 1.0)
FIRST_ROUND = Step("average it with the others", "averaged", 6.0)
STEPS = (LOAD, CONNECT, TAKE_OVER, TRIALS, FIRST_BATCH, FIRST_ROUND)
"""In their order. A step without an event before one that is over did not take place."""
START_S = sum(step.typical_s for step in STEPS if step is not FIRST_ROUND)
"""Seconds after which a peer of a small run computes, about."""


@dataclass(frozen=True)
class StepSeen:
    """How it stands with one step of a peer's start."""

    step: Step
    expected_s: float | None
    """What it took at this peer's last start; else a forecast or `typical_s`; None where nothing is known."""
    began: float | None
    """When it began, in seconds since 1970; None before that."""
    seconds: float | None
    """What it took; None before its end."""


def steps_seen(
    starts: Sequence[Sequence[dict]], waits_s: float = 0.0, round_s: float | None = None, *, is_typical: bool = True
) -> list[StepSeen]:
    """Return the steps of a peer's last start, in their order; none of a peer that was never started.

    `starts` are its events, a list for each start. It waits for `waits_s` seconds before each that tells nothing else.
    `round_s` is how long an epoch takes, as far as that is known from the peers that are there. `is_typical` says that
    a first start may take about `typical_s`: the model is small, and a processor computes it.
    """
    if not starts or not starts[-1]:
        return []
    before: dict[Step, float] = {}
    for start in starts[:-1]:
        before |= {step: seconds for step, (_, seconds) in _ended(start, waits_s)[0].items()}
    (ended, began), seen = _ended(starts[-1], waits_s), []
    last = max((STEPS.index(step) for step in ended), default=-1)
    for number, step in enumerate(STEPS):
        forecast = step.typical_s if is_typical else None
        if step is FIRST_ROUND and round_s is not None:
            forecast = round_s
        expected = before.get(step, forecast)
        if step in ended:
            seen.append(StepSeen(step, expected, *ended[step]))
        elif number > last:
            is_next = all(later.seconds is not None for later in seen)
            seen.append(StepSeen(step, expected, began if is_next else None, None))
    return seen


def seconds_to_count(starts: Sequence[Sequence[dict]], waits_s: float = 0.0) -> float | None:
    """Return the seconds from a peer's last start to its first gradient that counted; None if none has."""
    ended = _ended(starts[-1], waits_s)[0] if starts else {}
    return sum(seconds for _, seconds in ended.values()) if FIRST_ROUND in ended else None


def _ended(events: Sequence[dict], waits_s: float) -> tuple[dict[Step, tuple[float, float]], float]:
    """Return when each step of a start that is over began and how many seconds it took, and when the next one began.

    A pause is left out: a step in which one ends began so much later. A clock that is set back meanwhile makes a step
    take no time, rather than less.
    """
    ended: dict[Step, tuple[float, float]] = {}
    if not events:
        return ended, 0.0
    waits_s = (events[0].get("changed") or {}).get("start_after_s", waits_s)
    began, own, paused_at = events[0]["time"] + waits_s, None, None
    waiting = list(STEPS)
    for event in events:
        if event["event"] == "held" and paused_at is None:
            paused_at = event["time"]
        elif event["event"] == "going_on" and paused_at is not None:
            began, paused_at = began + max(0.0, event["time"] - max(began, paused_at)), None
        own = event.get("peer_id") if event["event"] == "joined" else own
        step = next((step for step in waiting if step.ends_with == event["event"]), None)
        if step is None or (step is FIRST_ROUND and not _counts(event, own)):
            continue
        waiting = waiting[waiting.index(step) + 1 :]
        ended[step] = began, max(0.0, event["time"] - began)
        began = max(began, event["time"])
    return ended, began


def _counts(averaged: dict, own: str | None) -> bool:
    """Return whether a gradient of the peer with this id is in an update with another's."""
    shares = averaged.get("shares")
    return isinstance(shares, dict) and len(shares) > 1 and shares.get(own, 0) > 0
