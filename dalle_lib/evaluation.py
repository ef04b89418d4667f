"""How good a model is: its loss on pictures it has not seen, and how often it draws the right one."""

import random
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from dalle_lib.model import DALLE, generate
from dalle_lib.streaming import CaptionTokenizer, CodeRow
from dalle_lib.streaming.batches import to_batch
from dalle_lib.vqgan import PatchCodebook


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


def draw_and_compare(
    model: DALLE,
    rows: list[CodeRow],
    data_set: list[CodeRow],
    tokenizer: CaptionTokenizer,
    codebook: PatchCodebook,
    *,
    guidance: float = 1.5,
    seed: int = 0,
) -> Drawn:
    """Return the first sample for the caption of each of `rows`, compared with every picture of `data_set`.

    `rows` must be among `data_set`. Pictures are compared at a quarter of their size, so that a stray pixel does not
    decide.
    """
    captions = [row.caption for row in rows]
    pictures = codebook.decode(generate(model, tokenizer(captions), guidance=guidance, seed=seed))
    all_pictures = codebook.decode(torch.stack([torch.from_numpy(row.codes) for row in data_set]))
    nearest = torch.cdist(_small(pictures), _small(all_pictures)).argmin(1)
    found = [data_set[int(i)].caption for i in nearest]
    return Drawn(captions, pictures, [a == b for a, b in zip(found, captions, strict=True)])


def choose_rows(rows: list[CodeRow], count: int, seed: int = 0) -> list[CodeRow]:
    """Return `count` of `rows`, or all if there are fewer; the choice depends on `seed` alone."""
    return random.Random(seed).sample(rows, min(count, len(rows)))


def _small(pictures: Tensor) -> Tensor:
    return F.avg_pool2d(pictures.permute(0, 3, 1, 2).float(), 4).flatten(1)
