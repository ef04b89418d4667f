"""Tables of the prose pages that are read from figures: the embedded model's, attacks', and the list of open runs."""

import json
import re
from html import escape
from pathlib import Path

from making.figures import KINDS, figure, row_of
from making.repository import ROOT

RUNS = ROOT / "site" / "runs.json"
NAMES = {
    "seen": "of the training data", "background": "with a new background", "colour": "with a new colour",
    "both": "with both new",
}  # fmt: skip
ATTACKS = (
    "nothing", "the gradient reversed, 100 times as long", "noise, 1000 times as loud", "NaN",
    "lie as reducers, where only members reduce, and they are none", "**lie as reducers, where all reduce**",
)  # fmt: skip


def make(made: Path) -> None:
    """Write the tables as markdown and the runs as HTML, for pages to include."""
    (made / "measured").mkdir(parents=True, exist_ok=True)
    (made / "emoji_table.md").write_text(emoji_table(), encoding="utf-8")
    (made / "measured" / "attacks.md").write_text(attacks(), encoding="utf-8")
    (made / "runs.html").write_text(open_runs(json.loads(RUNS.read_text(encoding="utf-8"))), encoding="utf-8")


def emoji_table() -> str:
    """Return how many first samples of the embedded model are right, and of CLIP's choices among 32."""
    rows = [
        f"| {NAMES[kind]} | {figure(f'strict_{kind}')} | {figure(f'nearest_{kind}')} | {figure(f'best_{kind}')} |"
        for kind in KINDS
    ]
    head = ("| captions | right | nearest | best of 32, right |", "| --- | ---: | ---: | ---: |")
    return "\n".join((*head, *rows, ""))


def attacks() -> str:
    """Return what attackers did to the loss, with the kit and with hivemind itself."""
    rows = [row_of(name) for name in ATTACKS]
    head = ("| what the two attackers do | loss with the kit | hivemind itself |", "| --- | --- | --- |")
    return "\n".join((*head, *(f"| {' | '.join([*cells, '', ''][:3])} |" for cells in rows), ""))


def open_runs(runs: list[dict]) -> str:
    """Return the open runs with links to their dashboards, or that there is none, as HTML.

    Raises ValueError for an entry that is not a run's name, title and a sentence about it.
    """
    if not runs:
        return "<p><strong>No run is open today.</strong> No public run is known to the kit yet.</p>\n"
    shown = []
    for entry in runs:
        if entry.keys() != {"run", "title", "about"} or not re.fullmatch(r"[\w.-]+/[\w.-]+", entry["run"]):
            raise ValueError(f"expected run (owner/name), title and about in {RUNS.name}, but got {entry}.")
        run, title, about = (escape(entry[field], quote=True) for field in ("run", "title", "about"))
        shown.append(
            f'<div class="person"><p><strong><a href="https://huggingface.co/{run}">{title}</a></strong> {about}</p>'
            f'<p><a href="dashboard.html?run={run}">How it stands</a> · <code>{run}</code></p></div>'
        )
    return '<div class="people">\n' + "\n".join(shown) + "\n</div>\n"
