"""The figures of a finished training: who computed what, and what the model gained."""

from pathlib import Path

from IPython.display import HTML

from dalle_lib.dashboard.tables import sentence, table_html
from dalle_lib.evaluation import Drawn, Examination
from dalle_lib.swarm import Crew, Peer
from dalle_lib.swarm.process.history import counted_rounds, epochs_of, samples_of, shares_in

KINDS = {"seen": "captions of the training data", "unseen": "captions never seen in training"}
"""The two kinds of captions for which a model is examined, as people read them."""
NOT_EXAMINED = (
    "The model was not examined: that is done only where the run's pictures are small and on this machine. "
    "To draw with the model, open 02_generate_images."
)

NOT_RANKED = (
    "No best of many was chosen: that is done only where the model was examined and the run's CLIP lies beside its "
    "card. 02_generate_images fetches one from the Hub."
)


def summarize(crew: Crew, you: Peer, before: Examination | None, after: Examination | None) -> dict:
    """Return the figures of a run as `you` saw it, for summary.json.

    They are the seconds that it took, the samples of each peer of `crew`, whose gradients each epoch was made of that
    you averaged with others, and, where the model was examined, its scores before and after.
    """
    peers, events, epochs = crew.peers, you.events(), epochs_of(you)
    samples = {name: samples_of(peer) for name, peer in peers.items()}
    shares = shares_in(counted_rounds(you, peers.values()))
    return {
        "seconds": events[-1]["time"] - events[0]["time"],
        "epochs": int(epochs["epoch"].max()) if len(epochs) else 0,
        "samples_by_peer": samples,
        "share_of_samples": {name: count / max(1, sum(samples.values())) for name, count in samples.items()},
        "share_of_gradients": shares.mean().to_dict(),
        "share_of_gradients_by_epoch": {int(epoch): row.to_dict() for epoch, row in shares.iterrows()},
        **_gain(before, after),
    }


def _gain(before: Examination | None, after: Examination | None) -> dict:
    if before is None or after is None:
        return {}
    return {
        "before": before.figures(),
        "after": after.figures(),
        "gain_seen": after.seen.exact - before.seen.exact,
        "gain_unseen": after.unseen.exact - before.unseen.exact,
    }


def summary_text(summary: dict, out: str | Path, program: str = "dalle-lib") -> str:
    """Return what `summarize` returned as lines of text, and which pictures in the folder `out` to look at.

    `program` is how `dalle-lib` is typed where the text is read.
    """
    lines = [f"{summary['epochs']} epochs in {summary['seconds']:.0f} s."]
    for name, share in summary["share_of_samples"].items():
        gradients = summary["share_of_gradients"].get(name, 0.0)
        lines.append(f"  {name}: {share:.0%} of the samples, {gradients:.0%} of the gradients")
    if "after" in summary:
        before, after = summary["before"], summary["after"]
        lines += [
            f"Right pictures, {title}: {before[f'exact_{kind}']:.0%} before, {after[f'exact_{kind}']:.0%} after."
            for kind, title in KINDS.items()
        ]
    files = [file for name in ("before_after", "best_of_32", "run") if (file := Path(out, f"{name}.png")).exists()]
    if (lapse := Path(out, "time_lapse.webp")).exists():
        files.append(lapse)
    lines += [f"Look at {', '.join(map(str, files))}.", f"All figures are in {out}/summary.json."]
    if receipts := sorted(Path(out, "receipts").glob("*.json")):
        lines.append(f"What each peer has given, signed: {', '.join(map(str, receipts))}.")
        lines.append(f"Anybody can check one: {program} receipt --check {receipts[-1]}")
    return "\n".join(lines)


def scores(before: Examination | None, after: Examination | None = None) -> HTML:
    """Return how well a model draws, as a table for a notebook, with a second column for the model after training."""
    columns = [examination for examination in (before, after) if examination is not None]
    if not columns:
        return sentence(NOT_EXAMINED)
    rows = [
        [f"right pictures, {title}", *(_right(getattr(one, kind)) for one in columns)] for kind, title in KINDS.items()
    ]
    rows.append(["loss on pictures never seen, nats per code", *(f"{one.held_out_loss:.2f}" for one in columns)])
    return HTML(table_html(["", "before", "after"][: 1 + len(columns)], rows))


def _right(drawn: Drawn) -> str:
    return f"{sum(drawn.is_exact)} of {len(drawn.is_exact)}"
