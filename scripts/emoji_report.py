"""The stage `report` of build_emoji.py: what the finished model can do, in figures and pictures."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import pandas as pd
import torch
from captioned import captioned
from emoji_clip import retrieval
from emoji_data import ASSETS, KINDS, LARGE
from emoji_pictures import Picture, pixels_of
from emoji_strict import MEASURES, Limits
from PIL import Image

from dalle_lib.dashboard.charts import to_png
from dalle_lib.evaluation import Gallery
from dalle_lib.inference import TextToImage
from dalle_lib.run import RunCard
from dalle_lib.streaming import read_codes
from dalle_lib.streaming.batches import codes_of
from dalle_lib.vqgan_training import psnr


@dataclass
class Report:
    """Show what the finished model can do: a table, the loss curve and a grid of pictures."""

    out: Path = ASSETS
    docs: Path = Path("docs/emoji")
    captions: int = 24
    """Captions of each kind."""
    candidates: int = 32
    """Pictures drawn of each caption."""

    def run(self) -> None:
        """Write table.json, loss.png and pictures.png."""
        file, pictures = self.out / f"{LARGE}.json", KINDS[LARGE].pictures()
        draw, card = TextToImage.from_run(file, device="cpu"), RunCard.load(file)
        splits = (card.data.train, card.data.held_out)
        rows = [
            row for s in splits for row in read_codes(Path(card.data_source(s)) / "codes.parquet", card.data.format)
        ]
        by_caption = {picture.caption: picture for picture in pictures}
        copies, originals = draw.vqgan.decode(codes_of(rows)), [by_caption[row.caption] for row in rows]
        limits = Limits.of_copies(copies, originals)
        table, shown = self._draw(draw, Gallery(rows, draw.vqgan), limits, pictures)
        figures = {
            "right": table,
            "limits": dict(zip(MEASURES, limits.values.tolist(), strict=True)),
            "decibels": psnr(copies, pixels_of(originals)),
            "clip": retrieval(draw.ranker, pictures),
        }
        (self.docs / "table.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        captioned(list(shown.values()), list(shown)).save(self.docs / "pictures.png", optimize=True)
        (self.docs / "loss.png").write_bytes(to_png(self._loss_chart()))

    def _draw(
        self, draw: TextToImage, gallery: Gallery, limits: Limits, pictures: list[Picture]
    ) -> tuple[dict, dict[str, Image.Image]]:
        """Return how many first candidates, and how many of CLIP's best, are right, and 12 first ones of each kind.

        The pictures are by caption.
        """
        table, shown = {}, {}
        for name, kind in self._kinds(pictures).items():
            chosen = random.Random(0).sample(kind, min(self.captions, len(kind)))
            drawings = draw([p.caption for p in chosen], candidates=self.candidates, best=1, top_k=0, seed=0)
            first = torch.stack([drawing.candidates[0] for drawing in drawings])
            best = torch.stack([drawing.candidates[drawing.best[0]] for drawing in drawings])
            table[name] = {
                "captions": len(chosen),
                "first": counts_right(gallery, limits, chosen, first),
                f"best of {self.candidates}": counts_right(gallery, limits, chosen, best),
            }
            shown |= {p.caption: Image.fromarray(one.numpy()) for p, one in zip(chosen[:12], first[:12], strict=True)}
            print(name, table[name], flush=True)
        return table, shown

    def _kinds(self, pictures: list[Picture]) -> dict[str, list[Picture]]:
        """Return the pictures whose captions are drawn, by how new they are to the model."""
        kinds = {"seen": [p for p in pictures if not p.held_out]}
        for name, kind in ("unseen background", "background"), ("unseen colour", "colour"), ("doubly unseen", "both"):
            kinds[name] = [p for p in pictures if p.held_out and p.kind == kind]
        return kinds

    def _loss_chart(self) -> alt.Chart:
        curve = pd.DataFrame(json.loads((self.docs / "loss.json").read_text(encoding="utf-8"))["means"])
        lines = curve.melt("step", var_name="of", value_name="loss, nats per token")
        return alt.Chart(lines).mark_line().encode(x="step", y="loss, nats per token", color="of")


def counts_right(gallery: Gallery, limits: Limits, asked: list[Picture], drawn: torch.Tensor) -> dict[str, int]:
    """Return how many of the drawn pictures [captions, 64, 64, 3] are right by each measure.

    `nearest`: of all pictures of the run, their own caption's is the nearest pixel by pixel, which flatters: a blurred
    picture in a wrong colour may pass. `strict`: they keep each of `MEASURES`, which are counted apart, too.
    """
    found, kept = gallery.nearest(drawn), limits.kept(drawn, asked)
    return {
        "nearest": sum(caption == picture.caption for caption, picture in zip(found, asked, strict=True)),
        "strict": int(kept.all(1).sum()),
        **dict(zip(MEASURES, kept.sum(0).tolist(), strict=True)),
    }
