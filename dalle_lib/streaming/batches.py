"""Batches that a model trains on, made from rows of captions and codes."""

import hashlib
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dalle_lib.streaming.layouts import CodeRow
from dalle_lib.streaming.stream import CodeStream, Receipt
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
    receipt: Receipt | None = None
    """From which rows it was made, if they are those of a stream."""

    def __len__(self) -> int:
        return len(self.text)


def codes_of(rows: list[CodeRow]) -> Int[Tensor, "rows codes"]:
    """Return the codes of `rows`, one picture below the other."""
    return torch.from_numpy(np.stack([row.codes for row in rows]))


def to_batch(rows: list[CodeRow], tokenizer: CaptionTokenizer) -> Batch:
    """Return `rows` as one batch, with nothing left out or corrupted."""
    codes = codes_of(rows)
    return Batch(tokenizer([row.caption for row in rows]), codes, codes)


class TrainingBatches:
    """Endless batches of `batch_size` rows of a stream, which go on where they stopped.

    `code_corruption` is the share of shown codes that are replaced by random ones below `codebook_size`, so that the
    model learns to go on from its own mistakes. `caption_dropout` is the share of captions whose ids all become 0, so
    that guided drawing has a model without a caption to push away from (arXiv:2207.12598). Which they are follows from
    the stream's seed and position, so who has a batch's receipt can make the very same batch. Iteration raises what
    the stream does, and ends when it is closed.
    """

    def __init__(
        self,
        rows: CodeStream,
        tokenizer: CaptionTokenizer,
        *,
        batch_size: int,
        codebook_size: int,
        code_corruption: float,
        caption_dropout: float,
    ) -> None:
        self.rows, self.batch_size = rows, batch_size
        self._tokenizer, self._codebook_size = tokenizer, codebook_size
        self._corruption, self._dropout = code_corruption, caption_dropout

    def __iter__(self) -> "TrainingBatches":
        return self

    def __next__(self) -> Batch:
        before, chunk = self.rows.state_dict(), []
        try:
            chunk = list(islice(self.rows, self.batch_size))
        finally:
            if len(chunk) < self.batch_size:  # nobody trains on the rows that came, so they must come again
                self.rows.load_state_dict(before)
        if len(chunk) < self.batch_size:
            raise StopIteration
        receipt = self.rows.receipt(before["position"])
        random = torch.Generator().manual_seed(_seed_of(receipt))
        batch = to_batch(chunk, self._tokenizer)
        corrupt = torch.rand(batch.codes.shape, generator=random) < self._corruption
        noise = torch.randint(self._codebook_size, batch.codes.shape, generator=random)
        drop = torch.rand(len(batch), 1, generator=random) < self._dropout
        shown = torch.where(corrupt, noise, batch.codes)
        return Batch(batch.text.masked_fill(drop, 0), batch.codes, shown, receipt)

    def state_dict(self) -> dict:
        """Return where the batches are, as JSON can hold it."""
        return self.rows.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Go on where the batches that gave `state` were. Raises ValueError for those of another stream."""
        self.rows.load_state_dict(state)

    @property
    def left_out(self) -> str:
        """What was left out of the data, and of how many rows, in a line; "" for nothing."""
        return self.rows.told_left_out() if self.rows.left_out or self.rows.data.unreadable else ""

    def prefetch(self) -> None:
        """Read ahead in a thread from now on; call it after forking."""
        self.rows.prefetch()

    def close(self) -> None:
        """End the batches, whoever waits for the next one."""
        self.rows.close()


def _seed_of(receipt: Receipt) -> int:
    told = f"{receipt.seed} {receipt.part} {receipt.start}"
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "little") >> 1
