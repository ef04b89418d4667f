"""Text as blocks of text tokens for language models: C4 from the Hub, or a folder with the same layout."""

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
"""The embedded text, about Python and in C4's layout: enough for the tutorial without a network."""
TEXT_MODEL = TEXT / "gpt2"
"""A small GPT-2 and its tokenizer; the model was trained on texts about databases only."""


class TextStream:
    """An iterator of blocks [length] of ids over one pass of a data set, which can stop and resume anywhere.

    Texts are joined by the tokenizer's end token and cut into blocks without padding; only the rest after the last
    whole block is lost. Each loop continues where the last one stopped. `documents` counts the texts read so far, and
    `skipped` the records whose text is not a string. Texts are tokenized in this process, when a block needs them.
    """

    def __init__(self, dataset, tokenizer: Callable, *, length: int) -> None:
        if length < 1:
            raise ValueError(f"expected blocks of at least 1 text token, but got length {length}.")
        if getattr(tokenizer, "eos_token_id", None) is None:
            raise ValueError(
                "expected a tokenizer with an end token, which separates the texts in a block, but this one has none: "
                "set tokenizer.eos_token."
            )
        self.length, self.documents, self.skipped = length, 0, 0
        self._untouched, self._tokenizer = dataset, tokenizer
        self._start_at(None)

    def records(self) -> Iterator[dict]:
        """Return an iterator of the raw records from the first on; the stream itself does not move."""
        return iter(_another(self._untouched))

    def batches(self, size: int) -> Iterator[Int64[Tensor, "batch length"]]:
        """Return an iterator of batches of `size` blocks; the last one holds those that are left."""
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
        """Return the place in the data, as JSON can hold it, with the ids of a text of which a block has a part."""
        return {
            "records": copy.deepcopy(self._dataset.state_dict() if self._is_started else self._state),
            "left": list(self._left),
            "documents": self.documents,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue where the stream that gave `state` was; it must have had the same data and tokenizer."""
        if missing := {"records", "left", "documents", "skipped"} - set(state):
            raise ValueError(
                f"expected the state of a text stream, but it lacks {sorted(missing)}: load the result of state_dict()."
            )
        self._start_at(copy.deepcopy(state["records"]))
        self._left, self.documents, self.skipped = list(state["left"]), state["documents"], state["skipped"]

    def _start_at(self, state: dict | None) -> None:
        self._dataset, self._state, self._left = _another(self._untouched), state, []
        if state is not None:
            self._dataset.load_state_dict(state)
        self._rows, self._is_started = iter(self._dataset), False

    def _next_document(self) -> list[int]:
        """Return the ids of the next text that is a string, and the end token. Raises StopIteration after the last."""
        while True:
            record = next(self._rows, None)
            self._is_started = True
            if record is None:
                self._require_documents()
                raise StopIteration
            if "text" not in record:
                raise ValueError(
                    f'expected records with a field "text", but they have {sorted(record)}: '
                    f"choose a data set of texts, such as allenai/c4."
                )
            if isinstance(record["text"], str):
                self.documents += 1
                ids = self._tokenizer(record["text"], add_special_tokens=False, verbose=False)["input_ids"]
                return [*ids, self._tokenizer.eos_token_id]
            self.skipped += 1

    def _require_documents(self) -> None:
        if self.documents == 0:
            raise ValueError(
                f'expected texts in the field "text", but found none: {self.skipped} records hold something else in it.'
            )


def _another(dataset):
    """Return a copy of a data set from which nothing has been read."""
    # copy.deepcopy would also copy all file systems of huggingface_hub, to which the data set refers.
    return pickle.loads(pickle.dumps(dataset))


def stream_text(
    source: str | Path, tokenizer: Callable, *, length: int = 1024, split: str = "train", config: str = "en"
) -> TextStream:
    """Return the stream of blocks [length] of a data set on the Hub, such as "allenai/c4", or of a folder like it.

    The folder has files `<config>/c4-<split>.*.json.gz`, which are read in the order of their names; each line is a
    record with a field "text". `tokenizer` is a tokenizer of transformers. This call reads only the list of files;
    records are read when blocks are needed. Raises ValueError if there is no such data set.
    """
    if Path(source).is_dir():
        dataset = _open_folder(Path(source), config, split)
    elif isinstance(source, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source):
        dataset = _open_hub(source, config, split)
    else:
        raise ValueError(
            f"expected a folder or the name of a data set on the Hub, owner/name, but there is no folder {source}: "
            f"correct the name, or use the embedded text, {__name__}.TEXT."
        )
    return TextStream(dataset, tokenizer, length=length)


def _open_folder(folder: Path, config: str, split: str):
    from datasets import load_dataset

    files = sorted(str(file) for file in (folder / config).glob(f"c4-{split}.*.json.gz"))
    if not files:
        found = sorted({f"{file.parent.name}/{file.name.split('.')[0]}" for file in folder.glob("*/c4-*.json.gz")})
        raise ValueError(
            f"expected files {config}/c4-{split}.*.json.gz in {folder}, but found "
            f"{', '.join(found) or 'no such files'}: choose another split, config or folder."
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
