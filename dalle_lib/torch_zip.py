"""What a checkpoint of torch would make its reader do, known before it is read.

torch unpickles it. Whatever that may construct, its memory and time have no bound by the size of the file: tuples that
hold each other twice are hashed for ever, and a number for a place in the unpickler's memory takes that memory.
"""

import os
import pickletools
import zipfile
from pathlib import Path

MAX_PICKLE_BYTES = 2**24
"""Bytes of a checkpoint but its tensors: 50 times what the published VQ-GAN's has."""
MAX_UNFOLDED = 10**7
"""Values that are looked up in a pickle, each counted with all that it holds; those of torch look up names."""
_MARK = object()
_HOLDS = {
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "FROZENSET",
    "REDUCE",
    "NEWOBJ",
    "NEWOBJ_EX",
    "INST",
    "OBJ",
    "BINPERSID",
}
"""Steps whose result is hashed by all that it is made of. Lists and dictionaries are not."""
_LOOKS_UP, _KEEPS = {"GET", "BINGET", "LONG_BINGET"}, {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_ADDS_MANY = {"APPENDS", "SETITEMS", "ADDITEMS"}


def require_plain(file: Path | str) -> None:
    """Raise ValueError if a file is no zip archive as torch has written since 1.6, is packed, or has no bound."""
    if not os.path.getsize(file):
        raise ValueError("it is empty")
    if not zipfile.is_zipfile(file):
        raise ValueError(
            "expected one that torch 1.6 or later wrote. If you trust it, write it anew with torch.save(torch.load(it))"
        )
    with zipfile.ZipFile(file) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > (size := os.path.getsize(file)):
            raise ValueError(f"it has {size:,} bytes, and unpacks to {unpacked:,}")
        pickles = [part for part in parts.infolist() if part.filename.endswith(".pkl")]
        if (size := sum(part.file_size for part in pickles)) > MAX_PICKLE_BYTES:
            raise ValueError(f"it has {size:,} bytes beside its tensors, and at most {MAX_PICKLE_BYTES:,} are read")
        for part in pickles:
            _require_bounded(parts.read(part))


def _require_bounded(pickle: bytes) -> None:
    """Raise ValueError if a pickle's reader could need more memory or time than its length and MAX_UNFOLDED allow.

    Its steps are followed with the number of values that each result holds in place of that result.
    """
    stack: list = []
    kept: dict[int, int] = {}
    looked_up = 0
    for count, (step, place, _) in enumerate(pickletools.genops(pickle)):
        if step.name in _KEEPS:
            place = len(kept) if step.name == "MEMOIZE" else place
            if place > count or not stack or stack[-1] is _MARK:
                raise ValueError("it keeps values where no pickle does")
            kept[place] = stack[-1]
        elif step.name == "MARK":
            stack.append(_MARK)
        else:
            taken = _taken(stack, step)
            size = 1 + sum(taken) if step.name in _HOLDS else taken[0] if taken else 1
            if step.name in _LOOKS_UP or step.name == "DUP":
                size = kept.get(place, 1) if step.name in _LOOKS_UP else size
                looked_up += size
            if looked_up > MAX_UNFOLDED:
                raise ValueError(f"it holds tuples within tuples of more than {MAX_UNFOLDED:,} values")
            stack += [size] * len(step.stack_after)


def _taken(stack: list, step: pickletools.OpcodeInfo) -> list[int]:
    """Take from the stack what a step takes, and return it from the bottom up."""
    taken, left = [], len(step.stack_before)
    if pickletools.markobject in step.stack_before:
        while stack and stack[-1] is not _MARK:
            taken.append(stack.pop())
        if not stack:
            raise ValueError("it ends what it has not begun")
        stack.pop()
        left = 1 if step.name in _ADDS_MANY else 0
    for _ in range(left):
        if not stack or stack[-1] is _MARK:
            raise ValueError("it takes more than there is")
        taken.append(stack.pop())
    return taken[::-1]
