"""Functions and classes of the package as their source tells them: signature, docstring, fields and methods.

Reading the source, rather than importing it, shows annotations as they are written (`Int[Tensor, "batch text"]`), and
needs neither torch nor a second.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from making.repository import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something public with a docstring."""

    kind: str
    """Which directive of Sphinx's Python domain shows it: function, class, exception, method, property, attribute."""
    name: str
    signature: str = ""
    """Parameters and result, or an attribute's type, as they are written."""
    value: str = ""
    """An attribute's default."""
    options: tuple[str, ...] = ()
    text: str
    """The docstring."""
    members: "tuple[Entry, ...]" = field(default=())


def homes(package: str) -> dict[str, str]:
    """Return in which module each name is defined that the package's `__init__.py` imports for others."""
    tree = ast.parse(file_of(package).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.name: node.module for node in imports for alias in node.names if node.module.startswith(f"{package}.")
    }


def file_of(module: str) -> Path:
    """Return the file of a module or package."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def entry_of(module: str, name: str) -> Entry | None:
    """Return what the source of `module` tells of `name`; None if that has no docstring, as constants have none."""
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    for node in tree.body:
        if getattr(node, "name", None) == name and (text := ast.get_docstring(node)):
            return class_entry(node, text, tree) if isinstance(node, ast.ClassDef) else function_entry(node, text)
    return None


def inherited(node: ast.ClassDef, tree: ast.Module) -> Iterator[Entry]:
    """Yield the fields that a class has from classes of this package, which its module imports by name."""
    imports = [item for item in tree.body if isinstance(item, ast.ImportFrom) and item.module]
    homes = {alias.name: item.module for item in imports for alias in item.names}
    for base in map(ast.unparse, node.bases):
        if homes.get(base, "").startswith("dalle_lib.") and (entry := entry_of(homes[base], base)):
            yield from (member for member in entry.members if member.kind == "attribute")


def function_entry(node: Function, text: str, kind: str = "function", options: tuple[str, ...] = ()) -> Entry:
    """Return the entry of a function or method; `self` and `cls` are not told."""
    arguments = node.args
    if kind != "function" and "staticmethod" not in options:
        dropped = ast.arguments(**(vars(arguments) | {"args": arguments.args[1:]}))
        arguments = dropped if arguments.args else arguments
    returned = f" -> {unparse(node.returns)}" if node.returns else ""
    return Entry(kind=kind, name=node.name, signature=f"({unparse(arguments)}){returned}", options=options, text=text)


def unparse(node: ast.AST) -> str:
    """Return a piece of source as this project writes it, with double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def class_entry(node: ast.ClassDef, text: str, tree: ast.Module) -> Entry:
    """Return the entry of a class with its documented fields, properties and methods, in their order."""
    made = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    signature = function_entry(made, "", "method").signature.removesuffix(" -> None") if made else ""
    more = f"\n\n{told}" if made and (told := ast.get_docstring(made)) else ""
    bases = [ast.unparse(base) for base in node.bases]
    kind = "exception" if any(base.endswith(("Error", "Exception")) for base in bases) else "class"
    members = (*inherited(node, tree), *members_of(node))
    return Entry(kind=kind, name=node.name, signature=signature, text=text + more, members=members)


def members_of(node: ast.ClassDef) -> Iterator[Entry]:
    """Yield the documented members of a class whose names are public, and how it is called."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, Function) and (text := ast.get_docstring(item)):
            if item.name == "__call__" or not item.name.startswith("_"):
                yield method_entry(item, text)
        elif isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            value = unparse(item.value) if item.value else ""
            name, kind = ast.unparse(item.target), unparse(item.annotation)
            if not name.startswith("_"):
                yield Entry(kind="attribute", name=name, signature=kind, value=value, text=after.value.value)


def method_entry(item: Function, text: str) -> Entry:
    """Return the entry of a method, or of what is read like a field."""
    marks = {ast.unparse(mark).split(".")[-1] for mark in item.decorator_list}
    if marks & {"property", "cached_property"}:
        kind = unparse(item.returns) if item.returns else ""
        return Entry(kind="property", name=item.name, signature=kind, text=text)
    options = tuple(sorted(marks & {"classmethod", "staticmethod"}))
    return function_entry(item, text, "method", (*options, *["async"] * isinstance(item, ast.AsyncFunctionDef)))
