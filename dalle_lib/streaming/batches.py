"""Batches that a model trains on, made from rows of captions and codes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dalle_lib.streaming.ahead import Ahead
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

    def split(self, size: int) -> list["Batch"]:
        """Return the batch in pieces of `size` samples, the last of which may be smaller; they have no receipt."""
        parts = (ids.split(size) for ids in (self.text, self.codes, self.input_codes))
        return [Batch(*piece) for piece in zip(*parts, strict=True)]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device. A copy to a GPU may go on after this has returned."""
        text, codes, shown = (ids.to(device, non_blocking=True) for ids in (self.text, self.codes, self.input_codes))
        return Batch(text, codes, shown, self.receipt)


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
        self._ahead: Ahead[int, _Made] | None = None
        self._asked: int | None = None
        self._ready: Callable[[Batch], Batch] = _as_it_is
        self._last: _Made | None = None

    def __iter__(self) -> "TrainingBatches":
        return self

    def __next__(self) -> Batch:
        if self._ahead is None:
            made = self._make(self.batch_size)
        else:
            size, self._asked = self._asked or self.batch_size, None
            made = self._ahead.take(size)
        if made is None:
            raise StopIteration
        self._last = made
        if self._ahead is not None:
            self._asked = self.batch_size
            self._ahead.ask(self._asked)
        return made.batch

    def _make(self, size: int) -> "_Made | None":
        """Return a batch of the next rows, and where the rows are then; None if they end."""
        before, made = self.rows.state_dict(), None
        try:
            made = self._made_of(list(islice(self.rows, size)), size, before["position"])
        finally:
            if made is None:  # nobody trains on the rows that came, so they must come again
                self.rows.load_state_dict(before)
        return made

    def _made_of(self, chunk: list[CodeRow], size: int, position: int) -> "_Made | None":
        """Return a batch of the rows that were drawn since `position`; None if they are fewer than `size`."""
        if len(chunk) < size:
            return None
        receipt = self.rows.receipt(position)
        random = torch.Generator().manual_seed(_seed_of(receipt))
        batch = to_batch(chunk, self._tokenizer)
        corrupt = torch.rand(batch.codes.shape, generator=random) < self._corruption
        noise = torch.randint(self._codebook_size, batch.codes.shape, generator=random)
        drop = torch.rand(len(batch), 1, generator=random) < self._dropout
        shown = torch.where(corrupt, noise, batch.codes)
        made = self._ready(Batch(batch.text.masked_fill(drop, 0), batch.codes, shown, receipt))
        return _Made(made, self.rows.state_dict(), self._told_left_out())

    def state_dict(self) -> dict:
        """Return where the batches are, as JSON can hold it. Those that are made ahead come again."""
        return self._last.state if self._last is not None else self.rows.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Go on where the batches that gave `state` were, if none is made ahead yet.

        Raises ValueError for those of another stream.
        """
        self.rows.load_state_dict(state)
        self._last = None

    @property
    def left_out(self) -> str:
        """What was left out of the data, and of how many rows, in a line; "" for nothing."""
        return self._last.left_out if self._last is not None else self._told_left_out()

    def prefetch(self, ready: Callable[[Batch], Batch] | None = None) -> None:
        """Read rows, and make the next batch, in threads from now on; call it after forking.

        `ready` is called there with each batch, and returns it as it is to be handed out. A batch that is made ahead
        has the `batch_size` of when the one before was handed out.
        """
        self.rows.prefetch()
        self._ready = ready or self._ready
        self._ahead = self._ahead or Ahead(self._make)

    def close(self) -> None:
        """End the batches, whoever waits for the next one."""
        self.rows.close()
        if self._ahead is not None:
            self._ahead.close()

    def _told_left_out(self) -> str:
        return self.rows.told_left_out() if self.rows.left_out or self.rows.data.unreadable else ""


class _Made(NamedTuple):
    """A batch, where the rows are after it, and what was left out until then."""

    batch: Batch
    state: dict
    left_out: str


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _seed_of(receipt: Receipt) -> int:
    told = f"{receipt.seed} {receipt.part} {receipt.start}"
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "little") >> 1
