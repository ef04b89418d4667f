"""A volunteer's evening on one machine: a private swarm trains the embedded model, which draws before and after."""

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dalle_lib.checkpoint import load_model
from dalle_lib.dashboard.charts import run_chart, to_png, to_svg
from dalle_lib.dashboard.grids import grid, ranked_grid
from dalle_lib.dashboard.lapses import write_lapse
from dalle_lib.dashboard.receipts import write_receipts
from dalle_lib.dashboard.run_page import write_own_page
from dalle_lib.dashboard.summary import summarize
from dalle_lib.dashboard.terminal import Lines
from dalle_lib.dashboard.watching import watch
from dalle_lib.evaluation import Examination, examine
from dalle_lib.inference import Drawing, TextToImage
from dalle_lib.model import DALLE
from dalle_lib.monitor.here import watch_over
from dalle_lib.run import RunCard, initial_model
from dalle_lib.swarm import Crew, Peer, PeerSettings, private_swarm
from dalle_lib.swarm.process.folder import MODEL
from dalle_lib.swarm.process.history import epochs_of
from dalle_lib.swarm.process.local import LATE_S, require_own_swarm

SWARM = "swarm"
"""Name of the swarm's folder in that of the report."""
RANKED = 3
"""Captions of each kind, seen and unseen in training, for which many candidates are drawn."""
CANDIDATES, BEST = 32, 4
"""Candidates drawn for each of these captions, and how many of them CLIP keeps."""


def run_demo(out: Path, minutes: float = 4.5, from_scratch: bool = False, late_s: float = LATE_S) -> dict:
    """Train a private swarm for `minutes`, write its report to the folder `out`, and return the report's figures.

    The last of the three trainers joins after `late_s` seconds. Progress is shown on standard error, as `watch` does.
    What an earlier demo left in `out` is replaced. Raises ValueError before anything is done if there is a folder
    `out`/swarm that no demo has made.
    """
    require_own_swarm(out / SWARM)
    card = RunCard.load("emoji-mini")
    if from_scratch:
        card = card.with_changes(checkpoint=None)
    _say("Drawing with the model as it is before training ...")
    before = examine(card, initial_model(card))
    _say(f"Training with two other peers on this machine, for {minutes:g} min; Ctrl+C ends it early ...")
    with contextlib.closing(private_swarm(card, out / SWARM, late_s)) as swarm:
        you = swarm.add(PeerSettings(run=swarm.run, name="you", max_minutes=minutes))
        watch_over(swarm)
        watch(you)
    _say("Drawing again with the trained model ...")
    trained = load_model(you.folder / MODEL, card.model)
    after = examine(card, trained)
    drawings = rank(card, trained, after)
    summary = summarize(swarm, you, before, after)
    write_report(out, summary, swarm, you, before, after, drawings)
    return summary


def rank(card: RunCard, model: DALLE, after: Examination | None) -> list[Drawing]:
    """Return CANDIDATES pictures and CLIP's choice among them, for the first captions of an examination.

    There are RANKED captions of each kind, and no drawings where the model was not examined, or the run's CLIP is not
    beside its card: fetching one takes longer than all else here.
    """
    if after is None or not card.clip_is_beside:
        return []
    draw = TextToImage.from_card(card, model)
    captions = after.seen.captions[:RANKED] + after.unseen.captions[:RANKED]
    return draw(captions, candidates=CANDIDATES, best=BEST, top_k=0, seed=0)


def write_report(
    out: str | Path,
    summary: dict,
    crew: Crew,
    you: Peer,
    before: Examination | None,
    after: Examination | None,
    drawings: Sequence[Drawing],
) -> None:
    """Write summary.json, run.png, run.svg and the receipts to the folder `out`, and the pictures that were drawn.

    These are before_after.png, best_of_32.png, and time_lapse.webp and time_lapse.gif. Last comes the dashboard of a
    swarm on this machine, as a page.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if before is not None and after is not None:
        grid(before, after).save(out / "before_after.png")
    if drawings:
        ranked_grid(drawings).save(out / f"best_of_{CANDIDATES}.png")
    chart = run_chart(epochs_of(you))
    (out / "run.png").write_bytes(to_png(chart))
    (out / "run.svg").write_text(to_svg(chart), encoding="utf-8")
    write_lapse(crew, out)
    write_receipts(crew, out)
    write_own_page(crew, out)


def run_notebook(notebook: Path, out: Path) -> dict:
    """Execute the notebook that does the demo step by step, and return the figures of its report.

    The executed notebook is written to the folder `out` as a page; the notebook itself must be set to write its report
    there. Progress is printed to standard error.
    """
    from dalle_lib.notebook_run import execute

    require_own_swarm(out / SWARM)
    out.mkdir(parents=True, exist_ok=True)
    _say(f"Executing {notebook}: a private swarm trains on this machine, about six minutes.")
    you, started, show = Peer(Path(out).resolve() / SWARM / "peers" / "you"), time.time(), Lines(sys.stderr)

    def progress() -> None:
        events = you.events()
        if events and events[0]["time"] > started:  # not what an earlier demo left there
            show(you)

    execute(notebook, out / f"{notebook.stem}.html", Path.cwd(), progress)
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
