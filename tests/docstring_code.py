"""The plain version of a function that its docstring shows."""

import inspect
import sys
import textwrap
from collections.abc import Callable


def written_plainly(function: Callable) -> Callable:
    """Return the function of the same name that the docstring's code block defines, among its module's own names."""
    text = inspect.getdoc(function)
    start = text.index(f"    def {function.__name__}(")
    block = [text[start:].split("\n", 1)[0]]
    for line in text[start:].split("\n")[1:]:
        if line and not line.startswith(" "):
            break
        block.append(line)
    names = dict(vars(sys.modules[function.__module__]))
    exec(textwrap.dedent("\n".join(block)), names)
    return names[function.__name__]
