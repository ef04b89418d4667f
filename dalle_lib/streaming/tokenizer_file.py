"""A tokenizer's file, held within bounds before `tokenizers` reads it, which aborts the process for want of memory.

Its steps before the vocabulary rewrite a caption, each what the one before has made: a few of them make any length.
"""

import base64
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

from tokenizers import Tokenizer

from dalle_lib.files import reading, small_text

MAX_STEPS = 10
"""Steps before the vocabulary, with their parts; GPT-4's and T5's tokenizers have 4 and 5."""
MAX_GROWTH = 200
"""How many times longer these may make a caption; T5's makes a sign 33 bytes."""
MAX_ADDED_LETTERS = 10**6
"""Letters of the texts beside the vocabulary that stand for a text token each, after all steps; T5's have 44,000."""
MAX_ENTRY = 1000
"""Letters of an entry of the vocabulary: by one of 200,000, `tokenizers` ends the process."""
MAX_WORD, MAX_PREFIX = 200, 10
"""Letters of a word that a vocabulary of word pieces takes apart, in a time that grows with their square, and of what
stands before a piece: BERT's have 100, and 2 ("##")."""
_GROWTH = {"ByteLevel": 2, "Lowercase": 2, "NFC": 3, "NFD": 4, "BertNormalizer": 12, "NFKC": 18, "NFKD": 18}
"""How many times as long steps make a text that put nothing in, by their type; of Unicode's forms, as UAX #15 says."""
_PUT_IN = ("content", "prepend", "replacement")
_CHARSMAP = "precompiled_charsmap"


def load_tokenizer(file: str | Path) -> Tokenizer:
    """Return the tokenizer in a file, without what it does after the vocabulary: special ids, and ids as text.

    Raises FileNotFoundError if there is none, and BrokenFile if it is something else, or could take any memory.
    """
    with reading(file, "a tokenizer"):
        return Tokenizer.from_str(json.dumps(bounded(file) | {"post_processor": None, "decoder": None}))


def bounded(file: str | Path) -> dict:
    """Return what a tokenizer's file says, which `tokenizers` reads in bounded time and memory.

    Raises BrokenFile if it does not, and FileNotFoundError if there is none.
    """
    with reading(file, "a tokenizer"):
        told = json.loads(small_text(Path(file)))
        if not isinstance(told, dict):
            raise ValueError("expected a JSON object")
        before = _within([told.get("normalizer"), told.get("pre_tokenizer")])
        steps = [found for found in before if isinstance(found, dict)]
        if len(steps) > MAX_STEPS:
            raise ValueError(f"expected at most {MAX_STEPS} steps before the vocabulary, but got {len(steps)}")
        if (growth := prod(map(_growth, steps))) > MAX_GROWTH:
            raise ValueError(f"expected steps that make a caption at most {MAX_GROWTH} times longer, but got {growth}")
        added = sum(1 + len(str(token.get("content"))) for token in told.get("added_tokens") or ())
        if added * growth > MAX_ADDED_LETTERS:
            raise ValueError(f"expected added tokens of at most {MAX_ADDED_LETTERS:,} letters after all steps")
        model = told.get("model")
        texts = (found for found in _within(model) if isinstance(found, str))
        if (longest := max(map(len, texts), default=0)) > MAX_ENTRY:
            raise ValueError(f"expected entries of at most {MAX_ENTRY:,} letters, but one has {longest:,}")
        if isinstance(model, dict):
            word, prefix = model.get("max_input_chars_per_word", 0), model.get("continuing_subword_prefix")
            if not isinstance(word, int) or word > MAX_WORD or len(str(prefix or "")) > MAX_PREFIX:
                raise ValueError(f"expected words of at most {MAX_WORD} letters, and prefixes of {MAX_PREFIX}")
        return told


def _within(told: object) -> Iterator[object]:
    """Yield a piece of JSON and all that it holds, names among them."""
    left = [told]
    while left:
        yield (found := left.pop())
        if isinstance(found, dict):
            left += [*found, *found.values()]
        elif isinstance(found, list):
            left += found


def _growth(step: dict) -> int:
    """Return how many times longer a step makes a text at most."""
    put_in = [len(str(step.get(name, ""))) for name in _PUT_IN]
    if _CHARSMAP in step:
        data = base64.b64decode(step[_CHARSMAP] or "")
        replacements = data[4 + int.from_bytes(data[:4], "little") :]
        put_in.append(max(map(len, replacements.split(b"\0"))))
    return max(1, _GROWTH.get(str(step.get("type")), 1), *put_in)
