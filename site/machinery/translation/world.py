"""Everything that is translated: functions and classes that some roots need, and the constants that these read."""

import ast
import builtins
import types
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from inspect import getsource

from machinery.translation.names import Names, Unsupported
from machinery.translation.statements import EMPTY, code_of
from machinery.translation.values import literal


class World:
    """What has been translated so far, and what is still to be.

    `left_out` names functions and methods, such as names.did_you_mean, that the page never calls; calling one is an error.
    """

    def __init__(self, left_out: frozenset[str] = frozenset()) -> None:
        self.left_out = left_out
        self.comprehensions = 0
        self.methods: set[str] = set()
        self.waiting: list[object] = []
        self.functions: dict[str, str] = {}
        self.classes: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.modules: set[str] = set()

    def translate(self, roots: list[object], given: dict[str, object]) -> str:
        """Return the JavaScript of these functions and classes, of all that they need, and of some values by name.

        Raises Unsupported for Python that has no translation.
        """
        for package in {root.__module__ for root in roots}:
            self._learn_methods(package)
        told = [f"dalle.translated.{name} = {literal(value, self.name_of)};" for name, value in given.items()]
        self.waiting += roots
        while self.waiting:
            self._take(self.waiting.pop())
        names = sorted(self.modules)
        lines = ['"use strict";', "(function () {", "const $py = dalle.python, $inc = $py.inc;"]
        lines += [f"const ${name} = dalle.translated.{name} = {{}};" for name in names]
        body = [*self.functions.values(), *self.classes.values(), *self.constants.values(), *told]
        return "\n".join([lines[0], "dalle.translated = {};", *lines[1:], *body, "})();", ""])

    def reference(self, module: types.ModuleType, name: str) -> str:
        """Return the expression of what a module calls `name`; it is translated if it is not yet."""
        if name not in vars(module):
            if hasattr(builtins, name):
                return f"$py.kinds.{name}"
            raise Unsupported(f"{module.__name__} has no {name}")
        value = vars(module)[name]
        if value is types.SimpleNamespace:
            return "$py.Namespace"
        if isinstance(value, types.ModuleType):
            return self._module(value.__name__)
        if isinstance(value, type | types.FunctionType) or hasattr(value, "__wrapped__"):
            return self.name_of(value)
        return self._constant(module, name, value)

    def name_of(self, value: object) -> str:
        """Return the expression of a class or a function of ours; it is translated if it is not yet."""
        key = f"{self._module(value.__module__)}.{value.__name__}"
        if key not in self.functions and key not in self.classes:
            self.waiting.append(value)
        return key

    def _module(self, name: str) -> str:
        short = name.removeprefix("dalle_lib.").replace(".", "_")
        if short not in self.modules:
            self.modules.add(short)
            self._learn_methods(name)
        return f"${short}"

    def _learn_methods(self, module: str) -> None:
        """Remember which names are methods: an attribute of such a name may have to be bound to its object."""
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ClassDef):
                self.methods |= {
                    one.name for one in node.body if isinstance(one, ast.FunctionDef) and not _is(one, "property")
                }

    def _constant(self, module: types.ModuleType, name: str, value: object) -> str:
        key = f"{self._module(module.__name__)}.{name}"
        if key not in self.constants:
            self.constants[key] = ""
            text = literal(value, self.name_of)
            del self.constants[key]  # behind the constants that it needs itself
            self.constants[key] = f"{key} = {text};"
        return key

    def _take(self, value: object) -> None:
        key = f"{self._module(value.__module__)}.{value.__name__}"
        if key in self.functions or key in self.classes:
            return
        module = import_module(value.__module__)
        [node] = [one for one in _tree(value.__module__).body if getattr(one, "name", None) == value.__name__]
        names = Names(self, module, EMPTY)
        try:
            if isinstance(value, type):
                self._take_class(key, value, node, names)
            else:
                self.functions[key] = f"{key} = {self._function(node, names, key)};"
        except Unsupported as error:
            raise Unsupported(f"{value.__module__}.{value.__name__}: {error}") from error

    def _take_class(self, key: str, value: type, node: ast.ClassDef, names: Names) -> None:
        parents = [one for one in value.__bases__ if one is not object]
        for parent in parents:
            self._take(parent)
        parent = self.name_of(parents[0]) if parents else "null"
        parts: dict[str, list[str]] = {"methods": [], "properties": [], "ofClass": []}
        for one in node.body:
            if isinstance(one, ast.FunctionDef):
                kind = "properties" if _is(one, "property") else "ofClass" if _is(one, "classmethod") else "methods"
                parts[kind].append(f"{one.name}: {self._function(one, names, f'{key}.{one.name}')}")
        told = [f"{kind}: {{\n{', '.join(inside)}}}" for kind, inside in parts.items() if inside]
        told.append(f"values: {{{', '.join(self._values(value))}}}")
        if is_dataclass(value):
            told.append(f"fields: [{', '.join(self._fields(value))}]")
        inside = ", ".join(told)
        self.classes[key] = f'{key} = $py.defineClass("{value.__name__}", {parent}, {{{inside}}});'

    def _function(self, node: ast.FunctionDef, names: Names, key: str) -> str:
        if key.removeprefix("$") in self.left_out:
            return f'$py.define([], () => {{ throw new Error("{key} is not on this page"); }})'
        return code_of(node, names)

    def _values(self, value: type) -> list[str]:
        """Return the values of a class itself, such as those that all objects of it share."""
        own = {name: one for name, one in vars(value).items() if not name.startswith("__") and name not in ("_abc_impl",)}
        declared = {field.name for field in fields(value)} if is_dataclass(value) else set()
        return [
            f"{name}: {literal(one, self.name_of)}"
            for name, one in own.items()
            if not isinstance(one, types.FunctionType | property | classmethod | types.MemberDescriptorType)
            and name not in declared
        ]

    def _fields(self, value: type) -> list[str]:
        told = []
        for field in fields(value):
            parts = [f'name: "{field.name}"']
            if field.default is not MISSING:
                parts.append(f"default: {literal(field.default, self.name_of)}")
            if field.default_factory is not MISSING:
                kind = {dict: "Dict", list: "List", set: "Collection"}[field.default_factory]
                parts.append(f'factory: "{kind}"')
            if field.type in (int, float, str, bool):
                parts.append(f"type: $py.kinds.{field.type.__name__}")
            told.append(f"{{{', '.join(parts)}}}")
        return told


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(getsource(import_module(module)))


def _is(node: ast.FunctionDef, decorator: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == decorator for one in node.decorator_list)
