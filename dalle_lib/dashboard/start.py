"""The start of a peer as a short list, in a terminal and a notebook; one line once its first gradient has counted."""

import time
from collections.abc import Sequence
from html import escape

from dalle_lib.amounts import duration
from dalle_lib.run import EMBEDDED_RUNS
from dalle_lib.swarm.process.standing import AT_WORK, Standing
from dalle_lib.swarm.process.starting import StepSeen, seconds_to_count, steps_seen
from dalle_lib.swarm.process.status import SwarmStatus

TITLE = "Until your first gradient counts"
UNDER_WAY = ("starting", "looking", "catching up", *AT_WORK)
"""States in which the list is shown; else what matters is told already."""


def steps_of(standing: Standing, starts: Sequence[Sequence[dict]], waits_s: float = 0.0) -> list[StepSeen]:
    """Return the steps of a trainer's start while they matter: none later, nor for a peer that trains alone."""
    if standing.role != "trainer" or standing.state not in UNDER_WAY:
        return []
    if any(event["event"] == "epoch" and event["peers"] <= 1 for event in starts[-1]):
        return []
    if seconds_to_count(starts, waits_s) is not None:
        return []
    return steps_seen(starts, waits_s, _epoch_s(standing.swarm), is_typical=_is_typical(standing, starts[-1]))


def _is_typical(standing: Standing, events: Sequence[dict]) -> bool:
    """Return whether a start may take what one of a small model on a processor has taken."""
    devices = [event["device"] for event in events if event["event"] == "loaded"]
    return standing.run in EMBEDDED_RUNS and all(device.startswith("cpu") for device in devices)


def title_of(events: Sequence[dict]) -> str:
    """Return what stands above the steps of a start: what they lead to, and on which devices, once these are known."""
    devices = [event["device"] for event in events if event["event"] == "loaded"]
    return f"{TITLE}, on {devices[-1]}:" if devices else f"{TITLE}:"


def counted_line(starts: Sequence[Sequence[dict]], waits_s: float = 0.0) -> str | None:
    """Return how long it took from a peer's start to its first gradient that counted; None before that."""
    seconds = seconds_to_count(starts, waits_s)
    return None if seconds is None else f"From start to the first counted gradient: {duration(seconds)}"


def start_lines(steps: Sequence[StepSeen], now: float | None = None) -> list[str]:
    """Return the steps of a start as lines of a terminal: a mark, the step, seconds and what is expected."""
    return [f"{mark} {step:<28} {told:>6}  {expected}" for mark, step, told, expected in _rows(steps, now)]


def start_html(standing: Standing, starts: Sequence[Sequence[dict]], waits_s: float = 0.0) -> str:
    """Return the start of a peer for a notebook: its steps while they matter, then a line, which unfolds at the end.

    While the peer is at work the panel is replaced every few seconds, so that what is unfolded would fold again.
    """
    if steps := steps_of(standing, starts, waits_s):
        return f"<p>{escape(title_of(starts[-1]))}</p>{_table(steps)}"
    if (line := counted_line(starts, waits_s)) is None:
        return ""
    if standing.state in UNDER_WAY:
        return f"<p>{escape(line)}</p>"
    steps = steps_seen(starts, waits_s, is_typical=_is_typical(standing, starts[-1]))
    return f"<details><summary>{escape(line)}</summary>{_table(steps)}</details>"


def _table(steps: Sequence[StepSeen]) -> str:
    from dalle_lib.dashboard.tables import table_html  # with IPython, which a terminal does without

    rows = [[escape(cell) for cell in row] for row in _rows(steps)]
    return table_html(["", "step", "took", "expected"], rows, is_words=True)


def _rows(steps: Sequence[StepSeen], now: float | None = None) -> list[tuple[str, str, str, str]]:
    """Return a mark, the step, what it took or has taken so far, and what is expected, of each step."""
    now, rows = time.time() if now is None else now, []
    for seen in steps:
        is_under_way = seen.seconds is None and seen.began is not None
        mark = "…" if is_under_way else "✓" if seen.seconds is not None else "·"
        so_far = max(0.0, now - seen.began) if is_under_way else seen.seconds
        told = "" if so_far is None else duration(so_far)
        expected = "" if seen.expected_s is None else f"about {duration(seen.expected_s)}"
        rows.append((mark, seen.step.name, told, expected))
    return rows


def _epoch_s(swarm: SwarmStatus | None) -> float | None:
    """Return how long the peers that are there compute an epoch together; None if that is not known."""
    speed = sum(peer.samples_per_s for peer in swarm.at_work) if swarm is not None else 0.0
    return swarm.target_batch_size / speed if speed > 0 else None
