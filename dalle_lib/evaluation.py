"""How good a model is: its loss on pictures it has not seen, and how often it draws the right one."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.machine import few_threads
from dalle_lib.model import DALLE, generate
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, CodeRow, code_files, read_codes
from dalle_lib.streaming.batches import codes_of, to_batch
from dalle_lib.vqgan import VQGAN, load_vqgan

COMPARED = 96
"""Captions of each kind, seen and unseen in training, for which a model is examined."""
MAX_EXAMINED_CODES = 256
"""Codes of the largest pictures for which a model is examined: larger ones take a processor too long."""
CHUNK = 256
"""Pictures that are decoded at a time, so that memory does not grow with the data."""
MAX_ROWS = 15_000
"""Pictures of a split, from its start, among which the right one must be nearest."""


@torch.inference_mode()
def image_loss(model: DALLE, rows: list[CodeRow], tokenizer: CaptionTokenizer, batch_size: int = 32) -> float:
    """Return the mean cross-entropy of the codes of `rows`, given their captions, in nats a code."""
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
    """Whether, of all pictures of the data set, the caption's own is nearest to what was drawn."""

    @property
    def exact(self) -> float:
        """Share of captions whose picture is right, from 0 to 1."""
        return sum(self.is_exact) / len(self.is_exact)


class Gallery:
    """The pictures of a data set as the VQ-GAN decodes them, among which the nearest to another picture is found.

    Pictures are compared at a quarter of their width and height, so that a stray pixel does not decide.
    """

    def __init__(self, rows: list[CodeRow], vqgan: VQGAN) -> None:
        """Decode the pictures of `rows`."""
        self.captions = [row.caption for row in rows]
        parts = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
        self._thumbnails = torch.cat([_thumbnails(vqgan.decode(codes_of(part))) for part in parts])

    def nearest(self, pictures: UInt8[Tensor, "pictures height width 3"]) -> list[str]:
        """Return, for each picture, the caption of the data set's nearest one by Euclidean distance."""
        places = torch.cdist(_thumbnails(pictures), self._thumbnails).argmin(1)
        return [self.captions[int(place)] for place in places]


def draw_one_each(
    model: DALLE,
    captions: list[str],
    tokenizer: CaptionTokenizer,
    vqgan: VQGAN,
    *,
    guidance: float = 1.5,
    seed: int = 0,
) -> UInt8[Tensor, "captions height width 3"]:
    """Draw the first sample of each caption. `guidance` and `seed` are those of `model.generate`."""
    with few_threads(model):
        return vqgan.decode(generate(model, tokenizer(captions), guidance=guidance, seed=seed)[:, 0])


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
    """Draw one picture for each caption, and return them compared with all pictures of `gallery`.

    `gallery` must hold the captions' own pictures. `guidance` and `seed` are those of `model.generate`.
    """
    pictures = draw_one_each(model, captions, tokenizer, vqgan, guidance=guidance, seed=seed)
    return Drawn(captions, pictures, [a == b for a, b in zip(gallery.nearest(pictures), captions, strict=True)])


def choose_captions(rows: list[CodeRow], count: int, seed: int = 0) -> list[str]:
    """Return `count` captions of `rows`, or all if there are fewer. The same `rows` and `seed` give the same ones."""
    return [row.caption for row in random.Random(seed).sample(rows, min(count, len(rows)))]


@dataclass(frozen=True)
class Examination:
    """How well a model does: its loss, and how often it draws the right picture."""

    held_out_loss: float
    """Mean image loss on pictures that are not in the training data, in nats a code."""
    seen: Drawn
    """Drawn for captions of the training data."""
    unseen: Drawn
    """Drawn for captions that the training data do not have."""

    def figures(self) -> dict[str, float]:
        """Return its numbers by name, for a summary."""
        return {
            "held_out_loss": self.held_out_loss,
            "exact_seen": self.seen.exact,
            "exact_unseen": self.unseen.exact,
        }


def examine(card: RunCard, model: DALLE, count: int = COMPARED) -> Examination | None:
    """Return how well `model` does on `count` captions seen in training and `count` unseen ones.

    Captions and seeds are the same in every call, so that a model can be compared before and after training. Returns
    None if the run's data are elsewhere on the Hub, or its pictures have more than MAX_EXAMINED_CODES codes.
    """
    if card.data.held_out.startswith("hf://") or card.model.image_length > MAX_EXAMINED_CODES:
        return None
    train, held_out = (first_rows(card, split) for split in (card.data.train, card.data.held_out))
    tokenizer = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length)
    vqgan = load_vqgan(card.path(card.vqgan))
    gallery, model = Gallery(train + held_out, vqgan), model.eval()

    def draw(rows: list[CodeRow]) -> Drawn:
        return draw_and_compare(model, choose_captions(rows, count), gallery, tokenizer, vqgan)

    return Examination(image_loss(model, held_out, tokenizer), seen=draw(train), unseen=draw(held_out))


def first_rows(card: RunCard, split: str, count: int = MAX_ROWS) -> list[CodeRow]:
    """Return the first rows of a split that lies beside the card."""
    rows: list[CodeRow] = []
    for file in code_files(Path(card.data_source(split))):
        if len(rows) < count:
            rows += read_codes(file, card.data.format)
    return rows[:count]


def _thumbnails(pictures: UInt8[Tensor, "pictures height width 3"]) -> Float[Tensor, "pictures pixels"]:
    """Return the pictures at a quarter of their width and height, each as one row of numbers."""
    return F.avg_pool2d(pictures.permute(0, 3, 1, 2).float(), 4).flatten(1)
