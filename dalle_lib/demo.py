"""A volunteer's evening on one machine: a private swarm trains the embedded model, which draws before and after."""

import contextlib
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from dalle_lib.checkpoint import load_model
from dalle_lib.dashboard.charts import run_chart, to_png, to_svg
from dalle_lib.dashboard.watching import lines_display, watch
from dalle_lib.evaluation import Drawn, Gallery, choose_captions, draw_and_compare, image_loss
from dalle_lib.inference import Drawing, TextToImage
from dalle_lib.model import DALLE
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.swarm import Crew, Peer, PeerFailed, PeerSettings, join_run
from dalle_lib.swarm.history import counted_by, epochs_of, names_of, samples_of
from dalle_lib.swarm.local import LocalSwarm
from dalle_lib.swarm.state import MODEL
from dalle_lib.swarm.trainer import initial_model
from dalle_lib.vqgan import load_vqgan

COMPARED = 96
"""Captions of each kind, seen and unseen in training, whose pictures are compared."""
LARGEST_EXAMINED = 256
"""Codes of a picture up to which models are examined."""
SHOWN = 8
"""Captions of each kind in the grid."""
RANKED, CANDIDATES, BEST = 3, 32, 4
"""Captions of each kind for which many candidates are drawn, how many, and how many of them CLIP keeps."""
LATE_S = 60.0
"""When the last neighbour joins."""


def take_part(run: str, name: str, minutes: float, folder: str | Path, token: str | None = None) -> Crew:
    """Join `run` as `name` for some minutes: an embedded run with company on this machine, any other as it is.

    An embedded run begins anew in `folder`; any other goes on in a folder of its own beside it. `token` is a Hugging
    Face token, for private runs.
    """
    card = RunCard.load(run, token)
    if run not in EMBEDDED_RUNS:
        settings = PeerSettings(run=run, name=name, max_minutes=minutes)
        return join_run(settings, Path(folder).with_name(card.key), token)
    swarm = private_swarm(card, folder)
    swarm.add(PeerSettings(run=swarm.run, name=name, max_minutes=minutes))
    return swarm


def private_swarm(card: RunCard, folder: str | Path, late_s: float = LATE_S) -> LocalSwarm:
    """Return a fresh swarm on this machine with two other volunteers; what an earlier one left in `folder` is removed.

    ada is as fast as you, eve works at half the pace and comes late. Nothing leaves this machine.
    """
    folder = Path(folder)
    if folder.exists():
        with contextlib.suppress(PeerFailed):  # how an earlier demo ended does not matter to this one
            LocalSwarm.found(folder).close()
        shutil.rmtree(folder)
    swarm = LocalSwarm.start(card, folder)
    swarm.add(PeerSettings(run=swarm.run, name="ada"))
    swarm.add(PeerSettings(run=swarm.run, name="eve", duty=0.5, batch_size=8, start_after_s=late_s))
    return swarm


@dataclass(frozen=True)
class Examination:
    """How well a model does, with fixed captions and seeds."""

    held_out_loss: float
    """Mean image loss on pictures that are in no training data, nats per code."""
    seen: Drawn
    """Captions of the training data."""
    unseen: Drawn
    """Combinations that no training caption contains."""

    def figures(self) -> dict[str, float]:
        """Return its numbers."""
        return {
            "held_out_loss": self.held_out_loss,
            "exact_seen": self.seen.exact,
            "exact_unseen": self.unseen.exact,
        }


def examine(card: RunCard, model: DALLE, count: int = COMPARED) -> Examination | None:
    """Return how well `model` does on `count` captions seen in training and `count` unseen ones.

    None if the run's pictures are not on this machine, or larger than what a processor draws in a minute.
    """
    if card.data.held_out.startswith("hf://") or card.model.image_length > LARGEST_EXAMINED:
        return None
    train, held_out = (
        read_codes(Path(card.data_source(split)) / "codes.parquet", card.data.format)
        for split in (card.data.train, card.data.held_out)
    )
    tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
    vqgan = load_vqgan(card.path(card.vqgan))
    gallery = Gallery(train + held_out, vqgan)
    model = model.eval()
    seen, unseen = (
        draw_and_compare(model, choose_captions(rows, count), gallery, tokenizer, vqgan) for rows in (train, held_out)
    )
    return Examination(image_loss(model, held_out, tokenizer), seen, unseen)


def grid(before: Examination, after: Examination, shown: int = SHOWN, side: int = 96) -> Image.Image:
    """Return the first pictures of both examinations: a column a caption, before above after."""
    cell, header, label = side + 8, 40, 64
    sheet = Image.new("RGB", (label + shown * cell, 2 * (header + 2 * cell)), "white")
    draw = ImageDraw.Draw(sheet)
    for block, kind in enumerate(("seen", "unseen")):
        top = block * (header + 2 * cell)
        title = "captions of the training data" if kind == "seen" else "combinations never seen in training"
        draw.text((4, top + 2), title, fill="#555555")
        for line, examination in enumerate((before, after)):
            drawn: Drawn = getattr(examination, kind)
            y = top + header + line * cell
            draw.text((4, y + side // 2), ("before", "after")[line], fill="black")
            for i in range(min(shown, len(drawn.captions))):
                picture = Image.fromarray(drawn.pictures[i].numpy()).resize((side, side), Image.Resampling.NEAREST)
                sheet.paste(picture, (label + i * cell, y))
                if line == 0:
                    draw.multiline_text((label + i * cell, top + 14), _wrap(drawn.captions[i]), fill="black", spacing=1)
    return sheet


def rank(card: RunCard, model: DALLE, after: Examination) -> list[Drawing]:
    """Return, for a few of the compared captions, CANDIDATES drawings each and CLIP's choice among them."""
    draw = TextToImage.from_card(card, model)
    captions = after.seen.captions[:RANKED] + after.unseen.captions[:RANKED]
    return draw(captions, candidates=CANDIDATES, best=BEST, top_k=0, seed=0)


def ranked_grid(drawings: list[Drawing], side: int = 96) -> Image.Image:
    """Return a row a caption: the first sample as it came, then the best of all candidates by CLIP."""
    cell, label, header = side + 8, 200, 28
    sheet = Image.new("RGB", (label + (1 + BEST) * cell + 24, header + len(drawings) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((label, 8), "first sample", fill="#555555")
    draw.text((label + cell + 24, 8), f"CLIP's best {BEST} of {CANDIDATES}", fill="#555555")
    for i, drawing in enumerate(drawings):
        y = header + i * cell
        draw.multiline_text((4, y + side // 3), _wrap(drawing.prompt, 30), fill="black", spacing=1)
        for k, picture in enumerate([Image.fromarray(drawing.candidates[0].numpy()), *drawing.pictures]):
            x = label + k * cell + (24 if k else 0)
            sheet.paste(picture.resize((side, side), Image.Resampling.NEAREST), (x, y))
    return sheet


def summarize(crew: Crew, you: Peer, before: Examination | None, after: Examination | None) -> dict:
    """Return the figures: time, work of each peer, whose gradients each epoch held, and the gain, if examined."""
    events = you.events()
    peers = crew.peers
    counted = counted_by(you, names_of(list(peers.values()))).fillna(0.0)
    counted = counted[counted.sum(axis=1) > 0]
    shares = counted.div(counted.sum(axis=1), axis=0)
    samples = {name: samples_of(peer) for name, peer in peers.items()}
    epochs = epochs_of(you)
    gained = {}
    if before is not None and after is not None:
        gained = {
            "before": before.figures(),
            "after": after.figures(),
            "gain_seen": after.seen.exact - before.seen.exact,
            "gain_unseen": after.unseen.exact - before.unseen.exact,
        }
    return {
        "seconds": events[-1]["time"] - events[0]["time"],
        "epochs": int(epochs["epoch"].max()) if len(epochs) else 0,
        "samples_by_peer": samples,
        "share_of_samples": {name: count / max(1, sum(samples.values())) for name, count in samples.items()},
        "share_of_gradients": (counted.sum() / max(1.0, counted.to_numpy().sum())).to_dict(),
        "share_of_gradients_by_epoch": {int(epoch): row.to_dict() for epoch, row in shares.iterrows()},
        **gained,
    }


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


def _wrap(caption: str, width: int = 17) -> str:
    lines = [""]
    for word in caption.split():
        if len(lines[-1]) + len(word) >= width and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
