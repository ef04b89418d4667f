"""What a monitor tells everybody: how the run stands, and how it went, as JSON files that a static page can read."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dalle_lib.files import replace_file
from dalle_lib.monitor.alarms import BEHIND
from dalle_lib.monitor.contributions import Contribution, Team, contributions, teams
from dalle_lib.monitor.crediting import ABSENT_S
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.monitor.drawings import BEST, PICTURES, drawings
from dalle_lib.run import RunCard
from dalle_lib.run.newest import TEAM_COLUMNS, USER_COLUMNS
from dalle_lib.swarm.process.lending import WHY

HISTORY = "history.json"
MAX_PEERS, MAX_USERS, MAX_TEAMS, MAX_ALARMS, MAX_CHECKPOINTS = 200, 500, 100, 30, 60
"""Rows of each list in the status, the first in its order; their totals count all."""
MAX_STATUS_BYTES = 190_000
"""Bytes of the status: pages and peers fetch it again and again."""
MAX_POINTS, MAX_EVALUATIONS = 2000, 500
"""Points of each line in the history, and checkpoints; of more, evenly spread ones are kept, and the last."""
STEPS_MIN = (1, 5, 15, 60, 240, 1440)
"""Minutes over which it tells who was there, the first of these that makes no more than MAX_POINTS."""
GONE_S = 3600.0
"""Seconds in which a peer that is no longer there is still shown."""
RECENT = 20
"""Epochs from which the pace is told."""


def status_of(card: RunCard, database: MonitorDatabase, now: float) -> dict:
    """Return how the run stands, as what JSON can hold. Times are seconds since 1970, all in whole seconds.

    `looked` is the minute in which the monitor last saw the swarm, whether there were peers or none.
    """
    looked = database.row("SELECT 60 * MAX(minute) AS at FROM moments WHERE 60 * minute <= :now", now=now)["at"]
    peers = _peers(database, now)
    users, of_teams = contributions(database, now), teams(database)
    last = database.row("SELECT * FROM epochs ORDER BY ended DESC, epoch DESC LIMIT 1")
    pace = [
        row["seconds"]
        for row in database.rows(
            "SELECT seconds FROM epochs WHERE seconds IS NOT NULL ORDER BY ended DESC LIMIT :count", count=RECENT
        )
    ]
    epoch_s = statistics.median(pace) if pace else None
    epoch, total = (last["epoch"] if last else 0), card.optimizer.total_epochs
    return {
        "run": card.name,
        "state": card.state,
        "message": card.message,
        "written": round(now),
        "looked": looked,
        "epoch": epoch,
        "total_epochs": total,
        "target_batch_size": card.averaging.target_batch_size,
        "epoch_s": _short(epoch_s),
        "samples_per_s": _short(card.averaging.target_batch_size / epoch_s if epoch_s else None),
        "left_s": None if epoch_s is None else round(epoch_s * (total - epoch)),
        "loss": _short(last["loss"] if last else None),
        "peers": peers[:MAX_PEERS],
        "peers_by_state": dict(Counter(peer["state"] for peer in peers)),
        "users": [_user(one) for one in users[:MAX_USERS]],
        "teams": [_team(one) for one in of_teams[:MAX_TEAMS]],
        "totals": _totals(database) | {"listed": len(users), "teams": len(of_teams)},
        "alarms": _alarms(database),
        "checkpoints": _checkpoints(database),
    }


def history_of(card: RunCard, database: MonitorDatabase, folder: Path) -> dict:
    """Return how the run went, as tables of columns of equal length. `folder` is the monitor's, with its pictures.

    `epochs` tells of each epoch when it ended, the loss, who was there and how fast they were, the samples that it and
    all before it took, which part of them reached an average, and how far parameters were apart; `hours` who was there,
    and what averaging sent, in hours since 1970, of which one may be a part; `evaluations` how good checkpoints are;
    `pictures` which files show what they draw. None stands for what is not known.
    """
    return {
        "epochs": _epochs(database, card.averaging.target_batch_size),
        "hours": _hours(database),
        "evaluations": _evaluations(database),
        "pictures": _pictures(folder),
    }


def fitted(status: dict) -> dict:
    """Return a status whose lists of peers, users and teams are cut, if need be, so that it has MAX_STATUS_BYTES.

    Totals still count all. Names may be long, and anybody may choose them.
    """
    lists = ("peers", "users", "teams")
    while len(_as_json(status).encode()) > MAX_STATUS_BYTES and any(status[name] for name in lists):
        status = {**status, **{name: status[name][: len(status[name]) * 3 // 4] for name in lists}}
    return status


def publish(folder: Path, name: str, told: dict) -> int:
    """Write one of the files, whole or not at all, and return its bytes."""
    text = _as_json(told)
    with replace_file(folder / name) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")
    return len(text.encode()) + 1


def _as_json(told: dict) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _peers(database: MonitorDatabase, now: float) -> list[dict]:
    """Return the peers that are there, or were lately: those that train first, then by their names."""
    rows = database.rows(
        "SELECT *, MAX(last_seen) AS seen FROM starts WHERE last_seen > :since GROUP BY peer", since=now - GONE_S
    )
    there = [row["epoch"] for row in rows if now - row["seen"] <= ABSENT_S and not row["held"]]
    median = statistics.median_low(there) if there else 0
    query = "SELECT * FROM alarms WHERE until IS NULL ORDER BY kind = 'apart' DESC"
    flagged = {row["subject"]: row for row in database.rows(query)}  # what is worse than being behind comes last
    peers = []
    for row in rows:
        state, why = "training", ""
        if now - row["seen"] > ABSENT_S:
            state, why = "gone", f"last seen {(now - row['seen']) / 60:.0f} minutes ago"
        elif row["peer"] in flagged:
            alarm = flagged[row["peer"]]
            is_late = alarm["kind"] == "apart" and row["epoch"] < median
            state, why = "lagging" if is_late else "flagged", alarm["told"]
        elif row["held"]:
            state, why = "paused", WHY.get(row["held"], "paused")
        elif row["loss"] is None and row["epoch"] <= median - BEHIND:
            state, why = "joining", "has not ended an epoch yet"
        peers.append({
            "id": row["peer"], "name": row["name"], "user": row["user"], "team": row["team"], "state": state,
            "why": why, "epoch": row["epoch"], "samples_per_s": _short(row["samples_per_s"]),
            "hardware": row["hardware"], "kit": row["kit"], "since": round(row["started"]),
        })  # fmt: skip
    order = ("flagged", "training", "joining", "lagging", "paused", "gone")
    return sorted(peers, key=lambda peer: (order.index(peer["state"]), peer["name"], peer["id"]))


def _user(one: Contribution) -> list:
    """Return a row of the leaderboard: the values of USER_COLUMNS alone, as names beside them take twice the room."""
    told = {
        "rank": one.rank, "user": one.user, "team": one.team, "compute_s": round(one.compute_s),
        "present_s": round(one.present_s), "samples": round(one.samples), "share": _short(one.share),
        "percentile": round(one.percentile, 1), "peers": one.peers, "last_seen": round(one.last_seen),
    }  # fmt: skip
    told |= dict(zip(("day", "week", "month"), map(int, one.active_days), strict=True))
    return [told[column] for column in USER_COLUMNS]


def _team(one: Team) -> list:
    """Return a row of the teams: the values of TEAM_COLUMNS."""
    told = {
        "rank": one.rank, "team": one.team, "compute_s": round(one.compute_s), "samples": round(one.samples),
        "share": _short(one.share), "members": one.members,
    }  # fmt: skip
    return [told[column] for column in TEAM_COLUMNS]


def _totals(database: MonitorDatabase) -> dict:
    row = database.row(
        "SELECT COUNT(DISTINCT user) AS users, COUNT(DISTINCT peer) AS peers, SUM(samples) AS samples, "
        "SUM(compute_s) AS compute_s FROM credits"
    )
    return {name: round(row[name] or 0) for name in row.keys()}  # noqa: SIM118 (a row of SQLite iterates over values)


def _alarms(database: MonitorDatabase) -> list[dict]:
    """Return what is wrong now, that of the whole run first, and then what was wrong, the newest first."""
    order = "until IS NULL DESC, until IS NULL AND subject != '', since DESC"  # peers cannot hide what is of the run
    rows = database.rows(f"SELECT * FROM alarms ORDER BY {order} LIMIT :most", most=MAX_ALARMS)
    return [
        {"kind": row["kind"], "told": row["told"], "since": round(row["since"]),
         "until": row["until"] and round(row["until"])}
        for row in rows
    ]  # fmt: skip


def _checkpoints(database: MonitorDatabase) -> list[dict]:
    rows = database.rows("SELECT * FROM checkpoints ORDER BY epoch DESC LIMIT :most", most=MAX_CHECKPOINTS)
    return [
        {"epoch": row["epoch"], "made": round(row["made"]), "sha256": row["sha256"], "bytes": row["bytes"],
         "is_sent": row["revision"] is not None, "figures": json.loads(row["figures"] or "{}")}
        for row in rows
    ]  # fmt: skip


def _epochs(database: MonitorDatabase, target_batch_size: int) -> dict[str, list]:
    rows = database.rows("SELECT * FROM epochs ORDER BY epoch")
    names = ("epoch", "ended", "loss", "peers", "samples_per_s", "counted_share", "spread", "farthest")
    told = _columns(rows, names)
    return told | {"samples": [epoch * target_batch_size for epoch in told["epoch"]]}  # not what peers claim


def _hours(database: MonitorDatabase) -> dict[str, list]:
    span = database.row("SELECT MAX(minute) - MIN(minute) AS minutes FROM moments")["minutes"] or 0
    step = next((step for step in STEPS_MIN if span / step < MAX_POINTS), STEPS_MIN[-1])
    rows = database.rows(
        "SELECT * FROM (SELECT minute / :step AS place, ROUND(AVG(peers), 1) AS peers, ROUND(AVG(users), 1) AS users, "
        "MAX(peers) AS most FROM moments GROUP BY place) LEFT JOIN (SELECT CAST(ended / 60 AS INTEGER) / :step AS "
        "place, AVG(up_mbps) AS up_mbps, AVG(down_mbps) AS down_mbps FROM epochs GROUP BY place) USING (place) "
        "ORDER BY place",
        step=step,
    )
    told = _columns(rows, ("place", "peers", "users", "most", "up_mbps", "down_mbps"))
    hours = (place * step / 60 for place in told.pop("place"))
    return {"hour": [int(hour) if hour == int(hour) else round(hour, 3) for hour in hours], **told}


def _evaluations(database: MonitorDatabase) -> dict[str, list]:
    """Return the loss on held-out data of each checkpoint with its 95% interval, and what its pictures show."""
    drawn = ("rank", "rank_chance", "rank_ceiling", "exact", "nearest", "nearest_held_out")
    rows = []
    for row in database.rows("SELECT epoch, made, figures FROM checkpoints WHERE figures IS NOT NULL ORDER BY epoch"):
        if figures := json.loads(row["figures"]):
            loss, half = figures["held_out_loss"], figures["half_width"]
            shown = {name: figures.get("drawn", {}).get(name) for name in drawn}
            whole = {"epoch": row["epoch"], "made": row["made"], "loss": loss, "low": loss - half, "high": loss + half}
            rows.append(whole | shown)
    return _columns(rows, ("epoch", "made", "loss", "low", "high", *drawn), MAX_EVALUATIONS)


def _pictures(folder: Path) -> dict[str, list]:
    shown = drawings(folder)
    return {
        "epoch": list(shown),
        "first": [files[PICTURES] for files in shown.values()],
        "best": [files.get(BEST) for files in shown.values()],
    }


def _columns(rows: Sequence, names: tuple[str, ...], most: int = MAX_POINTS) -> dict[str, list]:
    step = max(1, -(-len(rows) // most))
    kept = rows[::-1][::step][::-1]  # the last one is kept in any case
    return {name: [_short(row[name]) for row in kept] for name in names}


def _short(value: float | None) -> float | int | None:
    """Return a number in as few digits as a chart needs."""
    if value is None or isinstance(value, int):
        return value
    return round(value) if abs(value) >= 1e6 else float(f"{value:.4g}")
