"""Captions as ids of text tokens."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from dalle_lib.files import reading
from dalle_lib.streaming.tokenizer_file import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING_ID = 1
"""Fills up short captions; it is T5's end of text, as in the published run. Id 0 is kept for "no caption"."""

MAX_LETTERS = 10_000
"""Letters of a caption that are read, hundreds of times those of a long one."""

MAX_TOKEN_LETTERS = 100
"""Letters of a text token of a trained tokenizer: of one caption of 9,999 times "a", it would make one of as many, and
no peer could load its file."""

MAX_ALPHABET = 8000
"""Different letters that a trained tokenizer knows, the most frequent ones: Chinese captions have some thousands, and a
few captions of strangers could bring the others of Unicode, each with an embedding in the model."""


class CaptionTokenizer:
    """Turns captions into ids of one length: cut at `text_length` or padded with `PADDING_ID`, without special ids."""

    def __init__(self, file: str | Path, text_length: int) -> None:
        """Load a file of the `tokenizers` library, such as T5's tokenizer.json.

        Raises FileNotFoundError if there is none, and BrokenFile if it is something else.
        """
        self.text_length = text_length
        self._file, self._tokenizer = file, load_tokenizer(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        """Number of ids, including special ones."""
        return self._tokenizer.get_vocab_size()

    def __call__(self, captions: list[str]) -> Int[Tensor, "batch text"]:
        """Return the ids of each caption, int64 on the CPU; `text` is `text_length`.

        Raises BrokenFile if the tokenizer's file makes none of them.
        """
        with reading(self._file, "a tokenizer"):
            encodings = self._tokenizer.encode_batch(
                [caption[:MAX_LETTERS] for caption in captions], add_special_tokens=False
            )
        ids = torch.full((len(captions), self.text_length), PADDING_ID)
        for row, encoding in zip(ids, encodings, strict=True):
            kept = encoding.ids[: self.text_length]
            row[: len(kept)] = torch.tensor(kept, dtype=torch.long)
        return ids

    def read_part(self, caption: str) -> str:
        """Return the beginning of `caption` that its ids stand for: all of it, unless it is cut."""
        with reading(self._file, "a tokenizer"):
            read = self._tokenizer.encode(caption[:MAX_LETTERS], add_special_tokens=False)
        ends = [end for _, end in read.offsets]
        return caption if len(ends) <= self.text_length else caption[: ends[self.text_length - 1]]


def train_tokenizer(captions: Iterable[str], vocab: int) -> "Tokenizer":
    """Return a byte-pair tokenizer of lower-case words with at most `vocab` ids, for the captions of one run.

    Captions of more letters than that get more: one id for each of MAX_ALPHABET letters.

    Id 0 is kept for "no caption", PADDING_ID is the end of text, and 2 stands for letters that no caption has.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["<null>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=specials,
        show_progress=False,
        limit_alphabet=MAX_ALPHABET,
        max_token_length=MAX_TOKEN_LETTERS,
    )
    tokenizer.train_from_iterator((caption[:MAX_LETTERS] for caption in captions), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", PADDING_ID)])
    return tokenizer
