"""What is wrong with a run, as its monitor sees it: since when, until when, and in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dalle_lib.monitor.auditing import Auditor
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.losses import misfits
from dalle_lib.swarm.process.status import SwarmStatus

BEHIND = 3
"""Epochs behind the median peer from which on a peer is lagging."""
EMPTY_MINUTES, PAUSE_MINUTES = 10, 2
"""Minutes without anybody after which nobody trains: who joins, and a monitor that starts, need some. And the most
between two looks."""
STALL = 4.0
"""Multiple of the usual seconds of an epoch after which the run is stalled."""
STALL_S = 300.0
"""Seconds in which a run is not called stalled in any case."""
JUMP = 1.5
"""Multiple of the loss of before at which the loss is said to rise."""
FLOOD = 100
"""Peers that are not looked at from which on it is told."""
MAX_APART, MAX_TOLD = 20, 300
"""Peers that are told to be apart, and as many to claim too much, and letters of an alarm: who lies can make any number
of them."""
AGAIN_S, MAX_OVER = 3600.0, 5000
"""Seconds for which what is over is not new when it comes again, and problems that are over and remembered: peers can
make them come and go."""


@dataclass(frozen=True)
class Problem:
    """Something that is wrong now; `kind` and `subject` tell it apart from others."""

    kind: str
    subject: str
    told: str
    since: float | None = None
    """Seconds since 1970; None for now."""


def problems(
    status: SwarmStatus,
    database: MonitorDatabase,
    auditor: Auditor | None = None,
    is_open: bool = True,
    explained: float = math.inf,
) -> Iterator[Problem]:
    """Yield what is wrong at a look at the swarm, which the data base has; `auditor` is that of earlier ones.

    In a run that is not open, as nobody can join it, it is no problem that nobody trains. `explained` says how far
    peers' parameters may be apart (`drift.explained`).
    """
    if status.not_shown > FLOOD:
        yield Problem("flood", "", f"{status.not_shown:,} peers more post that they train than are looked at.")
    if not status.peers:
        if is_open:
            yield from _empty(status, database)
        return
    if status.at_work:  # nothing is wrong where all are paused
        yield from _stalled(status, database)
    yield from _loss_rises(database)
    epochs, median = sorted(peer.epoch for peer in status.at_work), status.median_epoch
    far = [peer for peer in status.at_work if abs(peer.epoch - median) >= BEHIND]
    is_split = len(far) > len(epochs) / 3 and len(epochs) > 2
    over = (auditor or Auditor(database)).overclaims(status, is_split)
    yield from (Problem("claims", peer, told) for peer, told in islice(over, MAX_APART))
    yield from (Problem("losses", peer, told) for peer, told in islice(misfits(status, database), MAX_APART))
    yield from islice(_off(status, explained), MAX_APART)
    if is_split:
        yield Problem("split", "", f"the peers are far apart: from epoch {epochs[0]:,} to {epochs[-1]:,}.")
        return
    for peer in far[:MAX_APART]:
        where = "behind" if peer.epoch < median else "ahead of"
        told = f"{peer.name} ({peer.peer_id[-6:]}) is {abs(peer.epoch - median):,} epochs {where} the others."
        yield Problem("apart", peer.peer_id, told)


def note(found: list[Problem], database: MonitorDatabase, now: float) -> list[Problem]:
    """Write down what began, and what is over; return what is new: it was not there in the last hour."""
    open_now = {(row["kind"], row["subject"]): row for row in database.rows("SELECT * FROM alarms WHERE until IS NULL")}
    current = {(problem.kind, problem.subject): problem for problem in found}
    with database.writing():
        for kind, subject in open_now.keys() - current.keys():
            database.change(
                "UPDATE alarms SET until = :now WHERE kind = :kind AND subject = :subject AND until IS NULL",
                now=now, kind=kind, subject=subject,
            )  # fmt: skip
        new = []
        for problem in [problem for key, problem in current.items() if key not in open_now]:
            told = problem.told[:MAX_TOLD]
            again = database.change(
                "UPDATE alarms SET until = NULL, told = :told WHERE kind = :kind AND subject = :subject AND since = "
                "(SELECT MAX(since) FROM alarms WHERE kind = :kind AND subject = :subject AND until > :over)",
                told=told, kind=problem.kind, subject=problem.subject, over=now - AGAIN_S,
            )  # fmt: skip
            if not again:
                new.append(problem)
                since = problem.since or now
                database.insert(
                    "alarms", kind=problem.kind, subject=problem.subject, told=told, since=since, until=None
                )  # fmt: skip
        database.change(
            "DELETE FROM alarms WHERE until IS NOT NULL AND until <= (SELECT until FROM alarms WHERE until IS NOT NULL "
            "ORDER BY until DESC LIMIT 1 OFFSET :most)", most=MAX_OVER,
        )  # fmt: skip
    return new


def _empty(status: SwarmStatus, database: MonitorDatabase) -> Iterator[Problem]:
    """Yield that nobody trains, if looks as long ago as EMPTY_MINUTES saw nobody, nor any since."""
    minute = int(status.time // 60)
    looks = database.row(
        "SELECT MIN(minute) AS first, MAX(peers) AS peers FROM moments WHERE minute >= :since",
        since=minute - EMPTY_MINUTES - PAUSE_MINUTES,
    )
    if looks["first"] is not None and looks["first"] <= minute - EMPTY_MINUTES and looks["peers"] == 0:
        yield Problem("empty", "", "nobody trains.")


def _stalled(status: SwarmStatus, database: MonitorDatabase) -> Iterator[Problem]:
    last = database.row("SELECT * FROM epochs ORDER BY ended DESC, epoch DESC LIMIT 1")
    if last is None or status.epoch >= status.total_epochs:
        return
    usual = database.row(
        "SELECT AVG(seconds) AS s FROM (SELECT seconds FROM epochs WHERE seconds > 0 ORDER BY ended DESC LIMIT 20)"
    )["s"]
    waited_s = status.time - last["ended"]
    if waited_s > max(STALL_S, STALL * (usual or 0.0)):
        yield Problem("stalled", "", f"no epoch has ended for {waited_s / 60:,.0f} minutes.")


def _off(status: SwarmStatus, explained: float) -> Iterator[Problem]:
    spread, names = status.spread, {peer.peer_id: peer.name for peer in status.at_work}
    for peer, off in (spread.off(explained) if spread else {}).items():
        told = (
            f"{names[peer]} ({peer[-6:]}) has parameters that are {off:.1%} off those of most others after update "
            f"{spread.epoch:,}; averaging explains {explained:.1%}."
        )
        yield Problem("off", peer, told)


def _loss_rises(database: MonitorDatabase) -> Iterator[Problem]:
    rows = database.rows("SELECT loss FROM epochs WHERE loss IS NOT NULL ORDER BY ended DESC LIMIT 30")
    losses = [row["loss"] for row in rows]
    if len(losses) < 30:
        return
    recent, before = sorted(losses[:5])[2], sorted(losses[5:])[12]
    if recent > JUMP * before:
        yield Problem("loss", "", f"the loss has risen from {before:.2f} to {recent:.2f}.")
