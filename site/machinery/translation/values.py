"""Values of Python as JavaScript: numbers, texts, containers, types, and objects of translated classes."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Literal, get_args, get_origin

_KINDS = (int, float, str, bool, tuple, list, dict)


def literal(value: object, name_of: Callable[[type], str]) -> str:
    """Return `value` in JavaScript; `name_of` gives the name of a translated class. Raises TypeError for others."""
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)
    if get_origin(value) is Literal:
        value = get_args(value)
    if value in _KINDS if isinstance(value, type) else False:
        return f"$py.kinds.{value.__name__}"
    if isinstance(value, type):
        return name_of(value)
    inside = [literal(one, name_of) for one in _items(value)]
    if isinstance(value, tuple | list):
        return f"new $py.{'Tuple' if isinstance(value, tuple) else 'List'}([{', '.join(inside)}])"
    if isinstance(value, set | frozenset):
        return f"new $py.Collection([{', '.join(sorted(inside))}])"
    if isinstance(value, dict):
        keys = [literal(key, name_of) for key in value]
        return f"$py.Dict.of([{', '.join(f'[{key}, {one}]' for key, one in zip(keys, inside, strict=True))}])"
    names = [field.name for field in fields(value)]
    named = ", ".join(f"{name}: {one}" for name, one in zip(names, inside, strict=True))
    return f"$py.make({name_of(type(value))}, [], {{{named}}})"


def plain(value: None | bool | int | float | str) -> str:
    """Return a number, a text, a truth value or None in JavaScript."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value)


def _items(value: object) -> list:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    raise TypeError(f"expected a value that the page can hold, but got {value!r:.200}.")
