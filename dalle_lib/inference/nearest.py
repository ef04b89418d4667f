"""Does a model repeat its training data, or draw something new? The training pictures that are nearest to a prompt."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from dalle_lib.inference.drawing import labelled, png_bytes
from dalle_lib.rerank import CLIPRanker
from dalle_lib.streaming import CodeRow
from dalle_lib.streaming.batches import codes_of
from dalle_lib.vqgan import VQGAN

CHUNK = 256
"""Pictures that are decoded and embedded at a time."""


@dataclass(frozen=True, repr=False)
class Nearest:
    """The training pictures nearest to a prompt, nearest first."""

    prompt: str
    captions: list[str]
    pictures: UInt8[Tensor, "pictures height width 3"]
    """Their codes, decoded by the VQ-GAN."""
    scores: Float[Tensor, "pictures"]
    """Cosine of the prompt's and each picture's CLIP embeddings."""

    def __repr__(self) -> str:
        """Return one line with the captions and scores."""
        found = (f"{caption} ({score:.3f})" for caption, score in zip(self.captions, self.scores.tolist(), strict=True))
        return f"<Training pictures nearest to {self.prompt!r}: {', '.join(found)}>"

    def _repr_png_(self) -> bytes:
        """Return the grid as notebooks show it."""
        return png_bytes(self.grid())

    def grid(self, side: int = 128) -> Image.Image:
        """Return the pictures beside each other, `side` pixels wide, each above its score."""
        pictures = [Image.fromarray(picture.numpy()) for picture in self.pictures]
        return labelled(pictures, [f"{score:.3f}" for score in self.scores.tolist()], side)


class TrainingPictures:
    """The pictures of a training set with their CLIP embeddings, about 2 KB and some milliseconds each."""

    def __init__(self, rows: list[CodeRow], vqgan: VQGAN, ranker: CLIPRanker) -> None:
        """Decode and embed the pictures of `rows`; only their embeddings are kept."""
        self.rows, self.vqgan, self.ranker = rows, vqgan, ranker
        parts = [rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK)]
        self.features = torch.cat([ranker.embed_pictures(vqgan.decode(codes_of(part))) for part in parts])

    def nearest(self, caption: str, count: int) -> Nearest:
        """Return the `count` pictures whose embeddings are nearest to that of `caption`, or all if there are fewer."""
        scores = self.features @ self.ranker.embed_captions([caption])[0]
        best = scores.topk(min(count, len(self.rows)))
        found = [self.rows[place] for place in best.indices.tolist()]
        return Nearest(caption, [row.caption for row in found], self.vqgan.decode(codes_of(found)), best.values)

    def nearest_to(
        self, pictures: UInt8[Tensor, "pictures height width 3"]
    ) -> tuple[Float[Tensor, "pictures"], Int[Tensor, "pictures"]]:
        """Return, for each picture, the cosine of its CLIP embedding and the nearest row's, and that row's place."""
        nearest = (self.ranker.embed_pictures(pictures) @ self.features.T).max(1)
        return nearest.values, nearest.indices
