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
"""How many times longer these may make a caption by what they put in; T5's makes a sign 33 bytes."""
MAX_ADDED = 10_000
"""Texts beside the vocabulary that stand for a text token each; T5's has 103."""
_PUT_IN = ("content", "prepend", "replacement")
_CHARSMAP = "precompiled_charsmap"


def load_tokenizer(file: str | Path) -> Tokenizer:
    """Return the tokenizer in a file, without what it does after the vocabulary: special ids, and ids as text.

    Raises FileNotFoundError if there is none, and BrokenFile if it is something else, or could take any memory.
    """
    with reading(file, "a tokenizer"):
        told = json.loads(small_text(Path(file)))
        if not isinstance(told, dict):
            raise ValueError("expected a JSON object")
        steps = list(_parts([told.get("normalizer"), told.get("pre_tokenizer")]))
        if len(steps) > MAX_STEPS:
            raise ValueError(f"expected at most {MAX_STEPS} steps before the vocabulary, but got {len(steps)}")
        if (growth := prod(map(_growth, steps))) > MAX_GROWTH:
            raise ValueError(f"expected steps that make a caption at most {MAX_GROWTH} times longer, but got {growth}")
        if len(told.get("added_tokens") or ()) > MAX_ADDED:
            raise ValueError(f"expected at most {MAX_ADDED:,} added tokens")
        return Tokenizer.from_str(json.dumps(told | {"post_processor": None, "decoder": None}))


def _parts(told: object) -> Iterator[dict]:
    """Yield all objects in a piece of JSON."""
    left = [told]
    while left:
        match left.pop():
            case dict(found):
                yield found
                left.extend(found.values())
            case list(found):
                left.extend(found)


def _growth(step: dict) -> int:
    """Return how many times longer a step makes a text at most by what it puts in."""
    put_in = [len(str(step.get(name, ""))) for name in _PUT_IN]
    if _CHARSMAP in step:
        data = base64.b64decode(step[_CHARSMAP] or "")
        replacements = data[4 + int.from_bytes(data[:4], "little") :]
        put_in.append(max(map(len, replacements.split(b"\0"))))
    return max(1, *put_in)
