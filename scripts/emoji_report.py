"""The stage `report` of build_emoji.py: what the finished model can do, in figures and pictures."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import pandas as pd
import torch
from emoji_clip import retrieval
from emoji_data import ASSETS, LARGE
from emoji_pictures import Picture, make_pictures, pixels_of
from emoji_vqgan import psnr

from dalle_lib.dashboard.charts import to_png
from dalle_lib.evaluation import Gallery
from dalle_lib.inference import TextToImage, contact_sheet
from dalle_lib.run import RunCard
from dalle_lib.streaming import CodeRow, read_codes
from dalle_lib.streaming.batches import codes_of
from dalle_lib.vqgan import VQGAN


@dataclass
class Report:
    """Show what the finished model can do: a table, the loss curve and a grid of pictures."""

    out: Path = ASSETS
    docs: Path = Path("docs/emoji")
    captions: int = 32
    """Captions of each kind."""
    candidates: int = 32
    """Pictures drawn of each caption."""

    def run(self) -> None:
        """Write table.json, loss.png and pictures.png."""
        file = self.out / f"{LARGE}.json"
        draw, card, pictures = TextToImage.from_run(file, device="cpu"), RunCard.load(file), make_pictures()
        splits = (card.data.train, card.data.held_out)
        rows = [
            row for s in splits for row in read_codes(Path(card.data_source(s)) / "codes.parquet", card.data.format)
        ]
        table, shown = self._draw(draw, Gallery(rows, draw.vqgan), pictures)
        figures = {
            "exact": table,
            "decibels": decibels(draw.vqgan, rows, pictures),
            "clip": retrieval(draw.ranker, pictures),
        }
        (self.docs / "table.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        contact_sheet(torch.stack(shown), columns=12, side=96).save(self.docs / "pictures.png")
        (self.docs / "loss.png").write_bytes(to_png(self._loss_chart()))

    def _draw(self, draw: TextToImage, gallery: Gallery, pictures: list[Picture]) -> tuple[dict, list[torch.Tensor]]:
        """Return how often the first candidate and CLIP's best are right, by kind of caption, and some pictures."""
        table, shown = {}, []
        for name, chosen in self._kinds(pictures).items():
            captions = random.Random(0).sample([p.caption for p in chosen], min(self.captions, len(chosen)))
            drawings = draw(captions, candidates=self.candidates, best=1, top_k=0, seed=0)
            best = [drawing.candidates[drawing.best[0]] for drawing in drawings]
            table[name] = {
                "captions": len(captions),
                "first": share_right(gallery, captions, [drawing.candidates[0] for drawing in drawings]),
                f"best of {self.candidates}": share_right(gallery, captions, best),
            }
            shown += best[:12]
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


def share_right(gallery: Gallery, captions: list[str], pictures: list[torch.Tensor]) -> float:
    """Return the share of pictures [64, 64, 3] that are nearest to their own caption's."""
    found = gallery.nearest(torch.stack(pictures))
    return sum(a == b for a, b in zip(found, captions, strict=True)) / len(captions)


def decibels(vqgan: VQGAN, rows: list[CodeRow], pictures: list[Picture]) -> dict[str, float]:
    """Return how close the VQ-GAN's pictures come to the originals, in dB, on the small set and on all."""
    by_caption = {picture.caption: picture for picture in pictures}
    originals = pixels_of([by_caption[row.caption] for row in rows])
    small = torch.tensor([by_caption[row.caption].small for row in rows])
    decoded = vqgan.decode(codes_of(rows))
    return {"small set": psnr(decoded[small], originals[small]), "all": psnr(decoded, originals)}
