"""The plain versions of functions that docstrings show."""

import inspect
import sys
import textwrap
from collections.abc import Callable


def written_plainly(function: Callable, name: str | None = None) -> Callable:
    """Return the function that a docstring's code block defines, among the names of the module of `function`.

    It is called `name`, or as `function` is.
    """
    text, name = inspect.getdoc(function), name or function.__name__
    start = text.index(f"    def {name}(")
    block = [text[start:].split("\n", 1)[0]]
    for line in text[start:].split("\n")[1:]:
        if line and not line.startswith(" "):
            break
        block.append(line)
    names = dict(vars(sys.modules[function.__module__]))
    exec(textwrap.dedent("\n".join(block)), names)
    return names[name]
