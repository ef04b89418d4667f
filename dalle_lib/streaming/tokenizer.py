"""Captions as token ids."""

from pathlib import Path

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

PADDING_ID = 1
"""Pads captions, as T5's end token does in the published run; id 0 is kept for "no caption"."""


class CaptionTokenizer:
    """Turns captions into ids of one length: no special tokens, cut at `text_length`, padded with `PADDING_ID`."""

    def __init__(self, file: str | Path, text_length: int) -> None:
        self.text_length = text_length
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return self._tokenizer.get_vocab_size()

    def __call__(self, captions: list[str]) -> Int[Tensor, "batch text"]:
        """Return the ids of each caption."""
        ids = torch.full((len(captions), self.text_length), PADDING_ID)
        for row, encoding in zip(ids, self._tokenizer.encode_batch(captions, add_special_tokens=False), strict=True):
            kept = encoding.ids[: self.text_length]
            row[: len(kept)] = torch.tensor(kept, dtype=torch.long)
        return ids
