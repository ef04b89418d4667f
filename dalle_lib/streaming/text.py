"""Text as blocks of tokens, for language models: C4 from the Hub, or a folder laid out as it is."""

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

TEXT = Path(__file__).parents[1] / "assets" / "text"
"""Embedded text about Python in C4's layout, enough to go through a tutorial offline."""
TEXT_MODEL = TEXT / "gpt2"
"""A small GPT-2 that has read about databases alone, with its tokenizer."""


class TextStream:
    """One pass over a data set's texts as blocks of `length` ids, and where in it we are.

    Texts are joined by the tokenizer's end token and cut into blocks without padding; only what is left after the last
    whole block is lost. Each loop goes on where the last one stopped. Texts that are no strings are counted in
    `skipped`. Tokens are made in this process, as they are asked for.
    """

    def __init__(self, dataset, tokenizer: Callable, *, length: int) -> None:
        if length < 1:
            raise ValueError(f"expected a block length of at least 1 token, but got {length}.")
        if getattr(tokenizer, "eos_token_id", None) is None:
            raise ValueError(
                "expected a tokenizer with an end token, which keeps texts apart in a block, but this one has none: "
                "set tokenizer.eos_token."
            )
        self.length, self.documents, self.skipped = length, 0, 0
        self._untouched, self._tokenizer = dataset, tokenizer
        self._start_at(None)

    def records(self) -> Iterator[dict]:
        """Return the raw records from the first on, to look at; the stream stays where it is."""
        return iter(_another(self._untouched))

    def batches(self, size: int) -> Iterator[Int64[Tensor, "batch length"]]:
        """Return `size` blocks at a time, at the end what is left."""
        if size < 1:
            raise ValueError(f"expected batches of at least 1 block, but got {size}.")
        while blocks := list(islice(self, size)):
            yield torch.stack(blocks)

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> Int64[Tensor, "length"]:
        while len(self._left) < self.length:
            self._left += self._next_document()
        block, self._left = self._left[: self.length], self._left[self.length :]
        return torch.tensor(block)

    def state_dict(self) -> dict:
        """Return where we are, as JSON can hold it: also the ids already made of a text that a block has cut."""
        return {
            "records": copy.deepcopy(self._dataset.state_dict() if self._is_started else self._state),
            "left": list(self._left),
            "documents": self.documents,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on where the stream was that gave `state`: same data, same tokenizer."""
        if missing := {"records", "left", "documents", "skipped"} - set(state):
            raise ValueError(
                f"expected the state of a text stream, but it lacks {sorted(missing)}: load what state_dict() gave."
            )
        self._start_at(copy.deepcopy(state["records"]))
        self._left, self.documents, self.skipped = list(state["left"]), state["documents"], state["skipped"]

    def _start_at(self, state: dict | None) -> None:
        self._dataset, self._state, self._left = _another(self._untouched), state, []
        if state is not None:
            self._dataset.load_state_dict(state)
        self._rows, self._is_started = iter(self._dataset), False

    def _next_document(self) -> list[int]:
        """Return the ids of the next good text and an end token. Raises StopIteration after the last."""
        while True:
            record = next(self._rows, None)
            self._is_started = True
            if record is None:
                self._require_documents()
                raise StopIteration
            if "text" not in record:
                raise ValueError(
                    f'expected records with a field "text", but they have {sorted(record)}: '
                    f"name a data set of texts, such as allenai/c4."
                )
            if isinstance(record["text"], str):
                self.documents += 1
                ids = self._tokenizer(record["text"], add_special_tokens=False, verbose=False)["input_ids"]
                return [*ids, self._tokenizer.eos_token_id]
            self.skipped += 1

    def _require_documents(self) -> None:
        if self.documents == 0:
            raise ValueError(
                f'expected texts in the field "text", but found none: {self.skipped} records hold something else there.'
            )


def _another(dataset):
    """Return a copy of a data set that nobody has read from yet."""
    # Not copy.deepcopy: the set refers to all of huggingface_hub's file systems, and copying one makes another of them.
    return pickle.loads(pickle.dumps(dataset))


def stream_text(
    source: str | Path, tokenizer: Callable, *, length: int = 1024, split: str = "train", config: str = "en"
) -> TextStream:
    """Return the blocks of a data set: its name on the Hub, such as "allenai/c4", or a folder with C4's layout.

    That layout is `<config>/c4-<split>.*.json.gz`, files of one record with a field "text" a line, read in the order of
    their names. `tokenizer` is a tokenizer of transformers. Nothing is read before the first block is asked for, but
    the list of files is. Raises ValueError if there is no such data set.
    """
    if Path(source).is_dir():
        dataset = _open_folder(Path(source), config, split)
    elif isinstance(source, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source):
        dataset = _open_hub(source, config, split)
    else:
        raise ValueError(
            f"expected a folder or the name of a data set on the Hub, owner/name, but there is no folder {source}: "
            f"correct it, or use the embedded text, {__name__}.TEXT."
        )
    return TextStream(dataset, tokenizer, length=length)


def _open_folder(folder: Path, config: str, split: str):
    from datasets import load_dataset

    files = sorted(str(file) for file in (folder / config).glob(f"c4-{split}.*.json.gz"))
    if not files:
        found = sorted({f"{file.parent.name}/{file.name.split('.')[0]}" for file in folder.glob("*/c4-*.json.gz")})
        raise ValueError(
            f"expected files {config}/c4-{split}.*.json.gz in {folder}, but found "
            f"{', '.join(found) or 'nothing of that kind'}: choose another split, config or folder."
        )
    return load_dataset("json", data_files={split: files}, split=split, streaming=True)


def _open_hub(name: str, config: str, split: str):
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        return load_dataset(name, config, split=split, streaming=True)
    except (DatasetNotFoundError, ConnectionError) as error:
        raise ValueError(
            f"expected a folder or a data set on the Hub, but there is no folder {name}, and the Hub gave no such data "
            f"set: check the name and the network, or use the embedded text, {__name__}.TEXT. "
            f"{type(error).__name__}: {error}"
        ) from error
