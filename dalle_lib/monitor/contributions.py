"""Whose work a run is: what users and teams are credited with over all their peers, most hours of computing first."""

from collections.abc import Sequence
from dataclasses import dataclass

from dalle_lib.monitor.crediting import HOUR_S
from dalle_lib.monitor.database import MonitorDatabase

DAY_S = 86_400.0
LISTED_S = 600.0
"""Seconds of computing from which on somebody is listed, as in the paper's run."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one user has given so far, over all their peers."""

    user: str
    team: str
    """The team of their last start, or ""."""
    rank: int
    """1 for the most hours of computing; equal hours have equal ranks."""
    percentile: float
    """Share of all users, in per cent, who have computed no longer than this one, themselves included."""
    compute_s: float
    present_s: float
    """Seconds in which a peer of theirs was there, also while it was paused, added up over their peers."""
    samples: float
    counted: float
    """Weight of their gradients in averages, in samples."""
    share: float
    """Their part of all gradients that were averaged, from 0 to 1."""
    peers: int
    """Peers that they have had in all."""
    last_seen: float
    """Seconds since 1970."""
    active_days: tuple[bool, bool, bool]
    """Whether they were there in the last day, in the last 7, and in the last 30."""


def contributions(database: MonitorDatabase, now: float, least_s: float = LISTED_S) -> list[Contribution]:
    """Return what each user with at least `least_s` seconds of computing has given, the first in rank first."""
    rows = database.rows(
        "SELECT user, SUM(samples) AS samples, SUM(compute_s) AS compute_s, SUM(present_s) AS present_s, "
        "SUM(counted) AS counted, COUNT(DISTINCT peer) AS peers, MAX(hour) AS hour FROM credits "
        "GROUP BY user ORDER BY compute_s DESC, user"
    )
    teams = {  # without members a peer may call itself otherwise, and then nobody has the name of before
        row["user"]: (row["team"], row["last_seen"])
        for row in database.rows("SELECT user, team, MAX(last_seen) AS last_seen FROM starts GROUP BY user")
    }
    averaged = sum(row["counted"] for row in rows) or 1.0
    ranks = _ranks([row["compute_s"] for row in rows])
    return [
        Contribution(
            user=row["user"], team=teams.get(row["user"], ("", 0.0))[0], rank=rank, percentile=100 * below / len(rows),
            compute_s=row["compute_s"], present_s=row["present_s"], samples=row["samples"], counted=row["counted"],
            share=row["counted"] / averaged, peers=row["peers"],
            last_seen=teams.get(row["user"], ("", row["hour"] * HOUR_S))[1],
            active_days=tuple(now - (row["hour"] + 1) * HOUR_S < days * DAY_S for days in (1, 7, 30)),
        )
        for row, (rank, below) in zip(rows, ranks, strict=True)
        if row["compute_s"] >= least_s
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Team:
    """What the peers of a team have given so far, each all that it ever gave to the team that it named last."""

    team: str
    rank: int
    """1 for the most hours of computing; equal hours have equal ranks."""
    compute_s: float
    samples: float
    share: float
    """Their part of all gradients that were averaged, from 0 to 1."""
    members: int
    """Users who have computed for it, those who want no name told among them."""


def teams(database: MonitorDatabase, least_s: float = LISTED_S) -> list[Team]:
    """Return the teams with at least `least_s` seconds of computing in order. Anybody may name any team."""
    averaged = database.row("SELECT SUM(counted) AS counted FROM credits")["counted"] or 1.0
    rows = database.rows(
        "SELECT team, SUM(samples) AS samples, SUM(compute_s) AS compute_s, SUM(counted) AS counted, "
        "COUNT(DISTINCT CASE WHEN compute_s > 0 THEN user END) AS members FROM "
        # summed by peers first, or SQLite goes through all credits for each peer
        "(SELECT peer, user, SUM(samples) AS samples, SUM(compute_s) AS compute_s, SUM(counted) AS counted "
        "FROM credits GROUP BY peer, user) JOIN "
        "(SELECT peer, TRIM(team) AS team, MAX(last_seen) FROM starts GROUP BY peer) USING (peer) "
        "WHERE team != '' GROUP BY team HAVING SUM(compute_s) >= :least_s ORDER BY compute_s DESC, team",
        least_s=least_s,
    )
    ranks = _ranks([row["compute_s"] for row in rows])
    return [
        Team(
            team=row["team"], rank=rank, compute_s=row["compute_s"], samples=row["samples"],
            share=row["counted"] / averaged, members=row["members"],
        )
        for row, (rank, _) in zip(rows, ranks, strict=True)
    ]  # fmt: skip


def _ranks(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return, for values in falling order, the rank of each from 1, and how many are no larger than it."""
    ranks: list[tuple[int, int]] = []
    for place, value in enumerate(values):
        is_equal = place > 0 and value == values[place - 1]
        ranks.append(ranks[-1] if is_equal else (place + 1, len(values) - place))
    return ranks
