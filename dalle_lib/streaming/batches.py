"""Rows as batches that a model trains on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dalle_lib.streaming.codes import CodeRow
from dalle_lib.streaming.tokenizer import CaptionTokenizer


@dataclass(frozen=True)
class Batch:
    """Captions as ids, the codes to predict, and the codes to show while predicting."""

    text: Int[Tensor, "batch text"]
    codes: Int[Tensor, "batch codes"]
    input_codes: Int[Tensor, "batch codes"]

    def __len__(self) -> int:
        return len(self.text)


def to_batch(rows: list[CodeRow], tokenizer: CaptionTokenizer) -> Batch:
    """Return `rows` as one batch, as they are."""
    codes = torch.from_numpy(np.stack([row.codes for row in rows]))
    return Batch(tokenizer([row.caption for row in rows]), codes, codes)


def training_batches(
    rows: Iterable[CodeRow],
    tokenizer: CaptionTokenizer,
    *,
    batch_size: int,
    codebook_size: int,
    code_corruption: float,
    caption_dropout: float,
    seed: int,
) -> Iterator[Batch]:
    """Return batches of `batch_size` rows, endless if `rows` is.

    `code_corruption` of the shown codes are replaced by random ones, so that the model learns to go on from its own
    mistakes; `caption_dropout` of the captions become id 0 throughout, which guided sampling draws against.
    """
    random = torch.Generator().manual_seed(seed)
    rows = iter(rows)
    while chunk := list(islice(rows, batch_size)):
        batch = to_batch(chunk, tokenizer)
        corrupt = torch.rand(batch.codes.shape, generator=random) < code_corruption
        noise = torch.randint(codebook_size, batch.codes.shape, generator=random)
        drop = torch.rand(len(batch), 1, generator=random) < caption_dropout
        yield Batch(batch.text.masked_fill(drop, 0), batch.codes, torch.where(corrupt, noise, batch.codes))
