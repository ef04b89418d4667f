"""Tables of the prose pages that are read from figures: the embedded model's, attacks', and the list of open runs."""

import json
import re
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
    """Write the tables as markdown, for pages to include."""
    (made / "measured").mkdir(parents=True, exist_ok=True)
    (made / "emoji_table.md").write_text(emoji_table(), encoding="utf-8")
    (made / "measured" / "attacks.md").write_text(attacks(), encoding="utf-8")
    (made / "runs.md").write_text(open_runs(json.loads(RUNS.read_text(encoding="utf-8"))), encoding="utf-8")


def emoji_table() -> str:
    """Return how many first samples of the embedded model are right, and of CLIP's choices among 32."""
    each = figure("captions_each")
    rows = [
        f"| {NAMES[kind]} | {each} | {figure(f'strict_{kind}')} | {figure(f'nearest_{kind}')} | {figure(f'best_{kind}')} |"
        for kind in KINDS
    ]
    head = (
        "| captions | number | first sample right | first sample nearest | best of 32 by CLIP right |",
        "| --- | ---: | ---: | ---: | ---: |",
    )
    return "\n".join((*head, *rows, ""))


def attacks() -> str:
    """Return what attackers did to the loss, with the kit and with hivemind itself."""
    rows = [row_of(name) for name in ATTACKS]
    head = ("| what the two attackers do | loss with the kit | hivemind itself |", "| --- | --- | --- |")
    return "\n".join((*head, *(f"| {' | '.join([*cells, '', ''][:3])} |" for cells in rows), ""))


def open_runs(runs: list[dict]) -> str:
    """Return the open runs with links to their dashboards, or that there is none.

    Raises ValueError for an entry that is not a run's name, title and a sentence about it.
    """
    if not runs:
        return "**No run is open today.** The list is empty, and no public run is known to the kit yet.\n"
    rows = []
    for entry in runs:
        if entry.keys() != {"run", "title", "about"} or not re.fullmatch(r"[\w.-]+/[\w.-]+", entry["run"]):
            raise ValueError(f"expected run (owner/name), title and about in {RUNS.name}, but got {entry}.")
        title, about = (_plain(entry[field]) for field in ("title", "about"))
        run = entry["run"]
        rows.append(f"| [{title}](https://huggingface.co/{run}) | {about} | [dashboard](dashboard.html?run={run}) |")
    return "\n".join(("| run | what it trains | how it stands |", "| --- | --- | --- |", *rows, ""))


def _plain(words: str) -> str:
    """Return words in which markdown means nothing."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|&$~-])", r"\\\1", " ".join(words.split()))
