"""How good a model is: its loss on pictures it has not seen, and how often it draws the right one."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model import DALLE, generate
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, CodeRow, read_codes
from dalle_lib.streaming.batches import to_batch
from dalle_lib.vqgan import VQGAN, load_vqgan

COMPARED = 96
"""Captions of each kind, seen and unseen in training, whose pictures are compared."""
LARGEST_EXAMINED = 256
"""Codes of a picture up to which models are examined."""


@torch.inference_mode()
def image_loss(model: DALLE, rows: list[CodeRow], tokenizer: CaptionTokenizer, batch_size: int = 32) -> float:
    """Return the mean loss in nats per code over `rows`."""
    total = 0.0
    for start in range(0, len(rows), batch_size):
        batch = to_batch(rows[start : start + batch_size], tokenizer)
        total += float(model(batch.text, batch.codes).image_loss) * len(batch)
    return total / len(rows)


@dataclass(frozen=True)
class Drawn:
    """One picture for each caption, and which of them are right."""

    captions: list[str]
    pictures: UInt8[Tensor, "captions height width 3"]
    is_exact: list[bool]

    @property
    def exact(self) -> float:
        """Share of captions whose picture is nearest, pixel by pixel, to the right one of the data set."""
        return sum(self.is_exact) / len(self.is_exact)


class Gallery:
    """The pictures of a data set, as the VQ-GAN shows them, for finding the one that another is nearest to.

    They are compared at a quarter of their size, so that a stray pixel does not decide.
    """

    def __init__(self, rows: list[CodeRow], vqgan: VQGAN) -> None:
        self.captions = [row.caption for row in rows]
        self._thumbnails = _thumbnails(vqgan.decode(torch.stack([torch.from_numpy(row.codes) for row in rows])))

    def nearest(self, pictures: UInt8[Tensor, "pictures height width 3"]) -> list[str]:
        """Return, for each picture, the caption of the data set's nearest one, in the least-squares sense."""
        places = torch.cdist(_thumbnails(pictures), self._thumbnails).argmin(1)
        return [self.captions[int(place)] for place in places]


def draw_and_compare(
    model: DALLE,
    captions: list[str],
    gallery: Gallery,
    tokenizer: CaptionTokenizer,
    vqgan: VQGAN,
    *,
    guidance: float = 1.5,
    seed: int = 0,
) -> Drawn:
    """Return the first sample for each caption, compared with every picture of `gallery`, which must have them all."""
    pictures = vqgan.decode(generate(model, tokenizer(captions), guidance=guidance, seed=seed)[:, 0])
    return Drawn(captions, pictures, [a == b for a, b in zip(gallery.nearest(pictures), captions, strict=True)])


def choose_captions(rows: list[CodeRow], count: int, seed: int = 0) -> list[str]:
    """Return `count` captions of `rows`, or all if there are fewer; the choice depends on `seed` alone."""
    return [row.caption for row in random.Random(seed).sample(rows, min(count, len(rows)))]


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


def _thumbnails(pictures: Tensor) -> Tensor:
    return F.avg_pool2d(pictures.permute(0, 3, 1, 2).float(), 4).flatten(1)
