"""Messages, records and files as a faulty or hostile peer would send them: real ones that were changed.

`answer_of` is what all fuzzed decoders promise: a value, or a ValueError whose text can be told.
"""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

MAX_LETTERS = 2000
"""Letters of a refusal. What is told of a peer is cut further, by `complaints.Pace`."""
REFUSED = object()
"""What `answer_of` returns where a decoder refused."""

_DEEP: list = []
for _ in range(500):
    _DEEP = [_DEEP]
ODD_NUMBERS = (math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324, -1, 0, 2**31, 2**63, 2**64 - 1, -(2**63), True)
ODD_TEXTS = ("", "\ud800", "\x1b[2J", "a\nb", "\0", "\u202e", "x" * 5000, "[owner:", "../..", "NaN")
odd: st.SearchStrategy = (
    st.sampled_from((None, *ODD_NUMBERS, *ODD_TEXTS, b"", b"\xc1", bytes(5000), _DEEP, [], {}, [[]] * 50, {"": None}))
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=4)
    | st.dictionaries(st.text(max_size=3), st.none() | st.floats(), max_size=3)
)
"""Values that a field should not have; some cannot be packed or written as JSON."""


def changed(rng: Random, *real: bytes) -> bytes:
    """Return one of these messages, or a splice of two, with a few bits, bytes or stretches changed; or any bytes."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(300))
    message = bytearray(rng.choice(real))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        _change(message, rng, rng.choice(real))
    return bytes(message)


def mutated(*real: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy that draws what `changed` makes of these messages."""
    return st.randoms(use_true_random=False).map(lambda rng: changed(rng, *real))


@st.composite
def protobuf(draw: st.DrawFn, *real: Message) -> Message:
    """Draw a message of hivemind's: what can be parsed of a real one whose bytes were changed, or the real one."""
    wholes = [each.SerializeToString() for each in real]
    try:
        return type(real[0]).FromString(draw(mutated(*wholes)))
    except DecodeError:  # hivemind's reading ends here
        return type(real[0]).FromString(wholes[0])  # a copy, as who reads a message may change it


def _change(message: bytearray, rng: Random, other: bytes) -> None:
    begin, length = rng.randint(0, len(message)), rng.choice((1, 2, 8, 100))
    match rng.randrange(8):
        case 0 if message:
            message[begin % len(message)] ^= 1 << rng.randrange(8)
        case 1 if message:
            message[begin % len(message)] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF, rng.randrange(256)))
        case 2:
            del message[begin:]
        case 3:
            del message[begin : begin + length]
        case 4:
            message[begin:begin] = rng.randbytes(length)
        case 5:
            message[begin:begin] = message[begin : begin + length] * rng.choice((1, 2, 50))
        case 6:
            message[begin:] = other[rng.randint(0, len(other)) :]
        case 7:
            message[begin : begin + length] = rng.choice((b"\xff", b"\0")) * length


@st.composite
def with_a_change(draw: st.DrawFn, value: Any) -> Any:
    """Draw a nested value of lists and dictionaries in which one part is another, is missing, or is too much."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 0:
        return draw(odd)
    if isinstance(value, list):
        place = draw(st.integers(0, len(value) - 1))
        kept = draw(st.sampled_from((1, 1, 1, 0, 2)))
        return [*value[:place], *[draw(with_a_change(value[place]))] * kept, *value[place + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    match draw(st.integers(0, 9)):
        case 0:
            return {key: kept for key, kept in value.items() if key != name}
        case 1:
            return {**value, draw(st.text(max_size=20)): draw(odd)}
    return {**value, name: draw(with_a_change(value[name]))}


def as_json(value: Any) -> bytes:
    """Return a value as JSON, as a careless program writes it: with NaN and infinity, and bytes as text."""
    return json.dumps(value, default=repr).encode()


def answer_of(decode: Callable, *arguments, letters: int = MAX_LETTERS) -> Any:
    """Return what a decoder returns, or REFUSED where it raises a ValueError whose text is short, in one line."""
    try:
        return decode(*arguments)
    except ValueError as refusal:
        told = str(refusal)
        assert len(told) <= letters, f"a refusal of {len(told):,} letters: {told[:300]}"
        assert told.isprintable(), f"a refusal that a terminal would obey: {told!r:.300}"
        return REFUSED
