"""What a name in a function means: a variable, something of its module, or something that comes with Python."""

import ast
import builtins
import collections
import dataclasses
import functools
import heapq
import itertools
import math
import types
import typing
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from machinery.translation.scopes import Scope, free_names, scope_of

if TYPE_CHECKING:
    from machinery.translation.world import World

LIBRARY = {
    dataclasses.replace: "replace", dataclasses.asdict: "asdict", dataclasses.fields: "fields", math.prod: "prod",
    functools.partial: "partial", heapq.heappush: "heappush", heapq.heappop: "heappop", itertools.count: "count",
    collections.Counter: "Counter", typing.get_args: "get_args",
}  # fmt: skip
"""Functions of the standard library that are built in for the translated code."""
BUILT_IN = frozenset(
    "Counter abs all any asdict bool count dict enumerate fields float frozenset get_args getattr heappop heappush id "
    "int isinstance len list map max min next partial prod range replace round set sorted str sum tuple type vars zip".split()
)
"""What the runtime has: `builtins` in site/_static/calculator_builtins.js."""
MODULES = (heapq, itertools)
RESERVED = frozenset(
    "arguments await break case catch class const continue default delete do else enum eval export extends false "
    "finally for function if implements import in instanceof interface let new null package private protected public "
    "return static super switch this throw true try typeof undefined var void while with yield".split()
)


@dataclass
class Names:
    """The names that a function sees."""

    world: "World"
    module: types.ModuleType
    scope: Scope
    outer: "Names | None" = None
    renamed: list[dict[str, str]] = field(default_factory=list)
    """Variables of the comprehensions that are being translated, and their names in JavaScript."""
    number: int = 0

    def inside(self, function: ast.FunctionDef | ast.Lambda) -> "Names":
        """Return the names that an inner function sees."""
        return Names(self.world, self.module, scope_of(function), self)

    def read(self, name: str) -> str:
        """Return the expression of a name, without a reference of its own."""
        for own in reversed(self.renamed):
            if name in own:
                return own[name]
        level = self
        while level is not None:
            if name in level.scope.own:
                return f"{variable(name)}.v" if name in level.scope.cells else variable(name)
            level = level.outer
        return self.world.reference(self.module, name)

    def cells_for(self, function: ast.FunctionDef | ast.Lambda) -> list[str]:
        """Return the variables of this function, or of those around it, that an inner one sees."""
        found, level = [], self
        for name in sorted(free_names(function)):
            level = self
            while level is not None and name not in level.scope.own:
                level = level.outer
            if level is not None:
                found.append(variable(name))
        return found

    def enter_comprehension(self, own: set[str]) -> int:
        """Give the variables of a comprehension names of their own; return its number."""
        self.world.comprehensions += 1
        self.renamed.append({name: f"{name}${self.world.comprehensions}" for name in own})
        return self.world.comprehensions

    def leave_comprehension(self) -> None:
        """Forget the variables of the latest comprehension."""
        self.renamed.pop()

    def is_variable(self, name: str) -> bool:
        """Return whether a name is a variable of this function, of one around it, or of a comprehension."""
        level: Names | None = self
        while level is not None:
            if name in level.scope.own or any(name in own for own in level.renamed):
                return True
            level = level.outer
        return False

    def value_of(self, node: ast.expr) -> object:
        """Return the object that an expression names in its module or in Python; None for a variable."""
        if isinstance(node, ast.Attribute) and (inside := self.value_of(node.value)) in MODULES:
            return getattr(inside, node.attr)
        if not isinstance(node, ast.Name) or self.is_variable(node.id):
            return None
        return vars(self.module).get(node.id, getattr(builtins, node.id, None))

    def is_library(self, node: ast.expr) -> bool:
        """Return whether an expression names a module of the standard library."""
        return isinstance(node, ast.Name) and self.value_of(node) in MODULES

    def builtin_of(self, node: ast.expr) -> str | None:
        """Return under what name the runtime has the function that an expression names; None if it has none."""
        value = self.value_of(node)
        if value is None or not callable(value):
            return None
        if getattr(value, "__module__", None) == "builtins" and not issubclass(_class(value), Exception):
            if value.__name__ not in BUILT_IN:
                raise Unsupported(f"line {node.lineno}: {value.__name__}")
            return value.__name__
        return LIBRARY.get(value) if isinstance(value, Hashable) else None


class Unsupported(Exception):
    """Python that the translation does not know."""


def variable(name: str) -> str:
    """Return the name of a variable in JavaScript."""
    return f"{name}$" if name in RESERVED else name


def _class(value: object) -> type:
    return value if isinstance(value, type) else type(value)
