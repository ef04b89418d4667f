"""Batches that a model trains on, made from rows of captions and codes."""

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
    """Captions and codes of some pictures, as a model takes them."""

    text: Int[Tensor, "batch text"]
    """Ids of the captions."""
    codes: Int[Tensor, "batch codes"]
    """Codes to predict."""
    input_codes: Int[Tensor, "batch codes"]
    """Codes that the model is shown while it predicts the next."""

    def __len__(self) -> int:
        return len(self.text)


def codes_of(rows: list[CodeRow]) -> Int[Tensor, "rows codes"]:
    """Return the codes of `rows`, one picture below the other."""
    return torch.from_numpy(np.stack([row.codes for row in rows]))


def to_batch(rows: list[CodeRow], tokenizer: CaptionTokenizer) -> Batch:
    """Return `rows` as one batch, with nothing left out or corrupted."""
    codes = codes_of(rows)
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
    """Yield batches of `batch_size` rows; the last is smaller if `rows` ends.

    `code_corruption` is the share of shown codes that are replaced by random ones below `codebook_size`, so that the
    model learns to go on from its own mistakes. `caption_dropout` is the share of captions whose ids all become 0, so
    that guided drawing has a model without a caption to push away from (arXiv:2207.12598).
    """
    random = torch.Generator().manual_seed(seed)
    rows = iter(rows)
    while chunk := list(islice(rows, batch_size)):
        batch = to_batch(chunk, tokenizer)
        corrupt = torch.rand(batch.codes.shape, generator=random) < code_corruption
        noise = torch.randint(codebook_size, batch.codes.shape, generator=random)
        drop = torch.rand(len(batch), 1, generator=random) < caption_dropout
        yield Batch(batch.text.masked_fill(drop, 0), batch.codes, torch.where(corrupt, noise, batch.codes))
