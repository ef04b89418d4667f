"""A run as its monitor tells it, for a notebook: how it stands, its charts and pictures, and who gave what."""

import base64
import json
import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import altair as alt
import ipywidgets
import pandas as pd
from IPython.display import HTML

from dalle_lib.amounts import duration
from dalle_lib.dashboard.charts import WIDTH, to_html
from dalle_lib.dashboard.run_charts import CHARTS, X_AXIS, rows_of
from dalle_lib.dashboard.run_status import checked_status, is_picture, is_told
from dalle_lib.dashboard.tables import sentence, table_html
from dalle_lib.files import BrokenFile, read_record, reading, small_bytes
from dalle_lib.monitor.published import HISTORY
from dalle_lib.one_line import in_one_line, printable
from dalle_lib.run import RunCard
from dalle_lib.run.files import MAX_CARD_BYTES
from dalle_lib.run.newest import PLAYED, STATUS, TEAM_COLUMNS, USER_COLUMNS, file_of_monitor
from dalle_lib.swarm.process.local import MONITOR

logger = logging.getLogger(__name__)

DEMO = Path("outputs/demo/swarm") / MONITOR
"""The monitor's folder of `make demo`."""
FUTURE_S = 120.0
"""Seconds by which a status may seem to be of later than now: clocks differ."""
SILENT_S = 3600.0
"""Seconds without a new status from which on the monitor of a run that is not over is called silent."""
MAX_NAME, MAX_WHY, MAX_ROWS = 40, 300, 200
_MADE = {STATUS: checked_status, HISTORY: dict}
_NO_ROWS = "The run's monitor tells nothing of this."


@dataclass(frozen=True)
class RunTold:
    """What a run's monitor has told last. Users and peers chose their names and teams: nothing of them is trusted."""

    status: Mapping
    history: Mapping
    card: RunCard | None = None
    """The run's card, if what was told came from the Hub."""
    folder: Path | None = None
    """The monitor's folder, if it is on this machine."""

    @classmethod
    def of(cls, run: str = "", folder: str | Path = "outputs/dashboard") -> "RunTold":
        """Return what the monitor of a run tells: of `owner/name` on the Hub, or of a folder on this machine.

        The folder is a monitor's, or one above it. Without `run` it is the demo's, where there has been one, or else
        the recorded run that comes with the package, played into `folder`. Raises ValueError where nothing is told,
        and ConnectionError if the Hub cannot be asked.
        """
        if not run and not (DEMO / STATUS).exists():
            with warnings.catch_warnings(action="ignore"):  # hivemind imports what torch will drop
                from dalle_lib.replay import recorded_run
            return cls.in_folder(recorded_run(Path(folder)))
        place = Path(run or DEMO)
        if not place.is_dir():
            return cls.on_hub(run)
        for inner in place, place / MONITOR, place / "swarm" / MONITOR:
            if (inner / HISTORY).exists():
                return cls.in_folder(inner)
        raise ValueError(
            f"expected {STATUS} and {HISTORY} of a run's monitor in {place}, or in its folder {MONITOR}, but there are "
            "none: name the folder that `dalle-lib monitor` writes, or the run as owner/name."
        )

    @classmethod
    def in_folder(cls, folder: Path) -> "RunTold":
        """Return what a monitor has written into its folder. Raises FileNotFoundError and BrokenFile."""
        status, history = (
            read_record(folder / name, make, "Its monitor writes it anew.") for name, make in _MADE.items()
        )
        return cls(status, history, folder=folder)

    @classmethod
    def on_hub(cls, run: str) -> "RunTold":
        """Return what the monitor of a run on the Hub has sent there. Raises ValueError and ConnectionError."""
        card = RunCard.load(run)
        if card.checkpoints is None:
            raise ValueError(f"the card of {run!r} names no repository of checkpoints, so no monitor tells of it.")
        told = []
        for name, make in _MADE.items():
            path = file_of_monitor(card, name)
            with reading(path, "what a run's monitor tells"):
                told.append(make(json.loads(small_bytes(path, MAX_CARD_BYTES))))
        return cls(*told, card=card)

    def rows(self, table: str) -> list[dict]:
        """Return the rows of a table of the history, or of `users` or `teams`, without broken ones, or none."""
        columns = {"users": USER_COLUMNS, "teams": TEAM_COLUMNS}.get(table)
        try:
            if columns is not None:
                whole = [row for row in self.status[table] if len(row) == len(columns)]
                rows = [dict(zip(columns, row, strict=True)) for row in whole]
            else:
                rows = rows_of(self.history[table])
            return [row for row in rows if is_told(table, row)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            logger.info("no %s: %s", table, in_one_line(error))
            return []

    def picture(self, name: str) -> bytes:
        """Return a picture that the history names. Raises the errors of `small_bytes`, and ConnectionError."""
        if not is_picture(name):
            raise ValueError(f"expected the name of a picture, but got {name!r:.100}")
        if self.folder is None:
            return small_bytes(file_of_monitor(self.card, name), MAX_CARD_BYTES)
        if (file := (self.folder / name).resolve()).is_relative_to(self.folder.resolve()):
            return small_bytes(file, MAX_CARD_BYTES)
        raise ValueError(f"expected a picture in {self.folder}, but got {name!r}")


def standing(told: RunTold, now: float | None = None) -> HTML:
    """Return how a run stands, as a table: state, age of the data, epochs, pace, peers by state, what is wrong."""
    status = told.status
    age_s = (time.time() if now is None else now) - status["written"]
    is_early = age_s < -FUTURE_S
    when = f"by a clock that is {duration(-age_s)} ahead" if is_early else f"{duration(max(0.0, age_s))} ago"
    peers = (f"{count:,} {printable(state)[:MAX_NAME]}" for state, count in list(status["peers_by_state"].items())[:9])
    is_recorded = PLAYED in status
    silent = status["state"] == "open" and age_s > SILENT_S and not is_recorded
    of_now = ", in a recording" if is_recorded else ", and its monitor is silent" if silent else ""
    rows = [
        ("run", printable(status["run"])[:MAX_WHY]),
        ("state", f"{printable(status['state'])[:MAX_NAME]}{of_now}"),
        ("told", when),
        ("epoch", f"{status['epoch']:,} of {status['total_epochs']:,}"),
        ("an epoch takes", "-" if status["epoch_s"] is None else duration(status["epoch_s"])),
        ("peers", ", ".join(peers) or "none"),
        ("users so far", f"{status['totals']['users']:,}"),
        *(
            ("wrong now", printable(alarm["told"])[:MAX_WHY])
            for alarm in status["alarms"][:MAX_ROWS]
            if alarm["until"] is None
        ),
    ]
    return HTML(table_html(("", ""), ((escape(name), escape(value)) for name, value in rows), is_words=True))


def chart(told: RunTold, name: str, over: str = "epoch") -> HTML:
    """Return one of CHARTS, of a run; `over` is "epoch", "time" or "samples". A sentence where nothing is told."""
    each = CHARTS[name]
    rows = [clean(row) for row in told.rows(each.table)]
    if not rows:
        return sentence(f"{each.title}: {_NO_ROWS[0].lower()}{_NO_ROWS[1:]}")
    drawn = each.of(rows).properties(width=WIDTH, title=each.title).to_dict()
    for parameter in drawn.get("params", []):
        if parameter["name"] == X_AXIS:
            parameter["value"] = over
    return HTML(to_html(alt.LayerChart.from_dict(drawn)))


def leaderboard(told: RunTold) -> pd.DataFrame:
    """Return the users who gave most: hours of computing, samples, and their share of the averaged gradients."""
    rows = [clean(row) for row in told.rows("users")[:MAX_ROWS]]
    return pd.DataFrame({
        "user": [row["user"] for row in rows], "team": [row["team"] for row in rows],
        "hours": [round(row["compute_s"] / 3600, 1) for row in rows], "samples": [row["samples"] for row in rows],
        "share": [f"{row['share']:.1%}" for row in rows], "peers": [row["peers"] for row in rows],
    }, index=pd.Index([row["rank"] for row in rows], name="rank"))  # fmt: skip


def machines(told: RunTold, name: str) -> pd.DataFrame:
    """Return all peers of the user whom `name` means: state, why, epoch, samples a second.

    Where peers of several users are called so, they alone. No row says that the monitor has not seen such a peer
    within the last hour, or does not list it.
    """
    users = _users_of(told, name)
    meant = (peer for peer in told.status["peers"] if peer["user"] in users)
    found = [clean(peer) for peer in meant if len(users) == 1 or peer["name"] == name][:MAX_ROWS]
    shown = ("name", "user", "state", "why", "epoch", "samples_per_s", "hardware")
    return pd.DataFrame({column.replace("_per_s", "/s"): [peer[column] for peer in found] for column in shown})


def is_counted(told: RunTold, name: str) -> HTML:
    """Return whether the gradients of a user, or of the user of a peer, count, and what they are credited with."""
    users = _users_of(told, name)
    if len(users) > 1:
        return sentence(
            f"Peers of {len(users)} users are called {clean({'name': name})['name']}: give your user name, or the id "
            "of your peer."
        )
    rows = [row for row in told.rows("users") if row["user"] in users]
    there = machines(told, name)
    training = int((there["state"] == "training").sum())
    if rows:
        row = rows[0]
        return sentence(
            f"Yes: {clean(row)['user']} has rank {row['rank']:,} of {told.status['totals']['users']:,}, with "
            f"{duration(row['compute_s'])} of computing, {row['samples']:,} samples and {row['share']:.1%} of the "
            f"averaged gradients. Their peers that train now: {training}."
        )
    if len(there):
        return sentence(
            "The monitor sees it, but lists no contribution yet: that takes ten minutes of computing in epochs in "
            f"which the gradient counted. Their peers: {len(there)}, of which train now: {training}."
        )
    return sentence(f"The monitor lists nobody called {clean({'name': name})['name']}: is the name written alike?")


def _users_of(told: RunTold, name: str) -> set[str]:
    """Return the users whom a name means: of the peer with that id, or of that name, or of peers that are called so.

    Anybody may call a peer as a user is called, so the users themselves come first.
    """
    rows = [*told.status["peers"], *told.rows("users")] if name else []
    for field in "id", "user", "name":
        if users := {row["user"] for row in rows if row.get(field) == name}:
            return users
    return set()


class LookingBack(ipywidgets.VBox):
    """A slider through the pictures of a run's checkpoints, and the picture; the newest is shown first."""

    def __init__(self, told: RunTold, names: Mapping[int, str]) -> None:
        self._told, self._names, self.picture = told, names, ipywidgets.HTML()
        options = [(f"{epoch:,}", epoch) for epoch in names]
        self.slider = ipywidgets.SelectionSlider(options=options, value=max(names), description="epoch")
        self.slider.observe(self._show, "value")
        self._show()
        super().__init__([self.slider, self.picture])

    def _show(self, _: object = None) -> None:
        epoch = self.slider.value
        try:
            data = base64.b64encode(self._told.picture(self._names[epoch])).decode()
        except (OSError, ValueError, BrokenFile) as error:
            self.picture.value = f"<p>No picture of epoch {epoch:,}: {escape(printable(in_one_line(error)))}</p>"
            return
        what = escape(f"what the checkpoint of epoch {epoch:,} draws for the run's prompts")
        style = "max-width:100%;height:auto"
        self.picture.value = f"<img alt='{what}' style='{style}' src='data:image/webp;base64,{data}'>"

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """Show the widget where there is one, and its picture on saved pages."""
        note = f"<p><i>Epoch {self.slider.value:,}; a slider goes back while the notebook runs.</i></p>"
        return super()._repr_mimebundle_(**kwargs) | {"text/html": self.picture.value + note}


def looking_back(told: RunTold, kind: str = "first") -> LookingBack | HTML:
    """Return a slider through the pictures of a run's checkpoints.

    `kind` is "first", the first sample of each prompt, or "best", CLIP's choice among several.
    """
    names = {row["epoch"]: row[kind] for row in told.rows("pictures") if row.get(kind)}
    return LookingBack(told, names) if names else sentence(f"Pictures: {_NO_ROWS[0].lower()}{_NO_ROWS[1:]}")


def clean(row: Mapping) -> dict:
    """Return a row whose texts, which strangers have chosen, are short and show every sign that they hold."""
    return {name: printable(value)[: MAX_WHY if name == "why" else MAX_NAME] if isinstance(value, str) else value
            for name, value in row.items()}  # fmt: skip
