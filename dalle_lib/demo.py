"""A volunteer's evening on one machine: a private swarm trains the embedded model, which draws before and after."""

import contextlib
import json
import sys
import time
from pathlib import Path

from dalle_lib.checkpoint import load_model
from dalle_lib.dashboard.charts import run_chart, to_png, to_svg
from dalle_lib.dashboard.grids import grid, ranked_grid
from dalle_lib.dashboard.summary import summarize
from dalle_lib.dashboard.watching import lines_display, watch
from dalle_lib.evaluation import Examination, examine
from dalle_lib.inference import Drawing, TextToImage
from dalle_lib.model import DALLE
from dalle_lib.run import RunCard, initial_model
from dalle_lib.swarm import Peer, PeerSettings, private_swarm
from dalle_lib.swarm.process.history import epochs_of
from dalle_lib.swarm.process.join import MODEL
from dalle_lib.swarm.process.local import LATE_S

RANKED, CANDIDATES, BEST = 3, 32, 4
"""Captions of each kind for which many candidates are drawn, how many, and how many of them CLIP keeps."""


def rank(card: RunCard, model: DALLE, after: Examination) -> list[Drawing]:
    """Return, for a few of the compared captions, CANDIDATES drawings each and CLIP's choice among them."""
    draw = TextToImage.from_card(card, model)
    captions = after.seen.captions[:RANKED] + after.unseen.captions[:RANKED]
    return draw(captions, candidates=CANDIDATES, best=BEST, top_k=0, seed=0)


def write_report(
    out: Path,
    summary: dict,
    you: Peer,
    before: Examination | None,
    after: Examination | None,
    drawings: list[Drawing] | None,
) -> None:
    """Write summary.json, run.png and run.svg to `out`, and before_after.png and best_of_32.png of what was drawn."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if before is not None and after is not None:
        grid(before, after).save(out / "before_after.png")
    if drawings is not None:
        ranked_grid(drawings).save(out / f"best_of_{CANDIDATES}.png")
    chart = run_chart(epochs_of(you))
    (out / "run.png").write_bytes(to_png(chart))
    (out / "run.svg").write_text(to_svg(chart), encoding="utf-8")


def run_demo(out: Path, minutes: float = 4.5, from_scratch: bool = False, late_s: float = LATE_S) -> dict:
    """Train a private swarm for `minutes`, write its report to `out`, and return its summary."""
    card = RunCard.load("emoji-mini")
    if from_scratch:
        card = card.with_changes(checkpoint=None)
    before = examine(card, initial_model(card))
    with contextlib.closing(private_swarm(card, out / "swarm", late_s)) as swarm:
        you = swarm.add(PeerSettings(run=swarm.run, name="you", max_minutes=minutes))
        watch(you)
    trained = load_model(you.folder / MODEL, card.model)
    after = examine(card, trained)
    summary = summarize(swarm, you, before, after)
    write_report(out, summary, you, before, after, rank(card, trained, after))
    return summary


def run_notebook(notebook: Path, out: Path) -> dict:
    """Execute the notebook that does the demo step by step, print its progress, and return its summary.

    Its page goes to `out`. The notebook must be set to write there too.
    """
    from dalle_lib.notebook_run import execute

    print(f"Executing {notebook}: a swarm of its own on this machine, about six minutes.", file=sys.stderr)
    you, started, show = Peer(Path(out).resolve() / "swarm" / "peers" / "you"), time.time(), lines_display(sys.stderr)

    def progress() -> None:
        events = you.events()
        if events and events[0]["time"] > started:
            show(you)

    execute(notebook, out / f"{notebook.stem}.html", Path.cwd(), progress)
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))
