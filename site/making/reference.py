"""Pages of the API: what each public package gives, from its docstrings."""

import ast
import re
from pathlib import Path
from textwrap import dedent

from making.sources import Entry, entry_of, file_of, homes

PACKAGES = {
    "dalle_lib.inference": "From a prompt to pictures",
    "dalle_lib.swarm": "Taking part in a run",
    "dalle_lib.run": "Runs and their cards",
    "dalle_lib.model": "The model and its sampling",
    "dalle_lib.optimizer": "The optimizer",
    "dalle_lib.streaming": "Data sets and streams",
    "dalle_lib.memory": "The memory calculator",
    "dalle_lib.auth": "Who may take part",
}
"""The packages whose names notebooks and other people's code rely on, with the titles of their pages."""
INDEX = """\
# Python

Notebooks and other people's scripts may rely on what these packages give. `import dalle_lib` gives the names that one
needs first, and loads each when it is first used: {first}. Shapes of tensors name their axes, as in
`Int[Tensor, "batch text"]`.

```{{toctree}}
:maxdepth: 1

{pages}
```
"""


def make(made: Path) -> None:
    """Write a page for each public package, and one that lists them."""
    folder = made / "pages" / "api"
    folder.mkdir(parents=True, exist_ok=True)
    entries = {package: entries_of(package) for package in PACKAGES}
    targets = {name: f"{package}.{name}" for package, found in entries.items() for name in found}
    for package, found in entries.items():
        text = page(package, found, targets)
        (folder / f"{package.split('.')[1]}.md").write_text(text, encoding="utf-8")
    first = ", ".join(linked(f"`{name}`", targets) for name in sorted(homes("dalle_lib")) if name in targets)
    pages = "\n".join(package.split(".")[1] for package in PACKAGES)
    (folder / "index.md").write_text(INDEX.format(first=first, pages=pages), encoding="utf-8")


def entries_of(package: str) -> dict[str, Entry]:
    """Return what the package gives, by name: what it does first, then what it raises."""
    found = {name: entry_of(module, name) for name, module in sorted(homes(package).items())}
    shown = {name: entry for name, entry in found.items() if entry}
    return dict(sorted(shown.items(), key=lambda item: item[1].kind == "exception"))


def page(package: str, entries: dict[str, Entry], targets: dict[str, str]) -> str:
    """Return the page of `package`; `targets` says where each public name stands."""
    text = ast.get_docstring(ast.parse(file_of(package).read_text(encoding="utf-8")))
    about = re.split(r"(?:Names are|Each name is) imported", text)[0].strip()
    begins = f"*From `{package}`.* {linked(about, targets)}"
    parts = [f"# {PACKAGES[package]}", begins, f"```{{py:currentmodule}} {package}\n```"]
    return "\n\n".join([*parts, *(directive(entry, targets) for entry in entries.values())]) + "\n"


def directive(entry: Entry, targets: dict[str, str], depth: int = 0) -> str:
    """Return the directive that shows `entry` and, inside it, its members."""
    options = [*entry.options, *["no-contents-entry"] * (depth > 0)]
    fence, lines = "`" * (5 - depth), [f":{option}:" for option in options]
    signature = qualified(entry.signature, targets)
    if entry.kind in ("attribute", "property"):
        lines += [f":type: {signature}"] * bool(signature) + [f":value: {entry.value}"] * bool(entry.value)
        signature = ""
    words = re.sub(r"::$", ":", dedent(entry.text).strip(), flags=re.MULTILINE)  # an indented block is code here, too
    inside = [linked(words, targets)]
    inside += [directive(member, targets, depth + 1) for member in entry.members]
    head = "\n".join([f"{fence}{{py:{entry.kind}}} {entry.name}{signature}", *lines])
    return f"{head}\n\n" + "\n\n".join(inside) + f"\n{fence}"


def qualified(signature: str, targets: dict[str, str]) -> str:
    """Return a signature whose public names are whole, so that they become links; the page shows them short."""
    return re.sub(r"(?<![\w.'\"])([A-Z]\w+)(?![\w'\"])", lambda name: targets.get(name[1], name[1]), signature)


def linked(text: str, targets: dict[str, str]) -> str:
    """Return a docstring whose public names in backticks are links."""

    def link(code: re.Match) -> str:
        first, _, rest = code[1].partition(".")
        return f"{{py:obj}}`{code[1]} <{targets[first]}{rest and '.' + rest}>`" if first in targets else code[0]

    return re.sub(r"(?<![`}])`([A-Za-z_][\w.]*)`(?!`)", link, text)
