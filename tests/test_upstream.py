"""What `swarm/upstream.py` says of hivemind is true of the installed release, and it leaves out nothing."""

import ast
import contextlib
import importlib
import inspect
import pkgutil
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dalle_lib
from dalle_lib import auth, swarm
from dalle_lib.swarm.upstream import NAMES

ROOT = Path(dalle_lib.__file__).parents[1]
LISTED = [(owner, declared) for owner, declarations in NAMES.items() for declared in declarations]


def name_of(declared: str) -> str:
    return declared.partition("(")[0].split()[-1]


def found(owner: str):
    """Return the module or class of hivemind that a key of NAMES stands for."""
    try:
        return importlib.import_module(f"hivemind.{owner}")
    except ModuleNotFoundError:
        module, _, name = owner.rpartition(".")
        return getattr(importlib.import_module(f"hivemind.{module}"), name)


def declaration(owner, name: str) -> str:
    """Return how NAMES would declare something that is there: a function with its signature, anything else by name."""
    member = inspect.getattr_static(owner, name, None)
    function = member.__func__ if isinstance(member, classmethod) else member
    if not inspect.isfunction(function):
        return name
    is_context = function.__code__.co_filename == contextlib.__file__
    kinds = {
        "classmethod": isinstance(member, classmethod),
        "async with": is_context and inspect.isasyncgenfunction(inspect.unwrap(function)),
        "async for": inspect.isasyncgenfunction(inspect.unwrap(function)),
        "async def": inspect.iscoroutinefunction(function),
        "def": True,
    }
    signature = inspect.signature(function)
    untyped = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    signature = signature.replace(parameters=untyped, return_annotation=inspect.Signature.empty)
    return f"{next(kind for kind, is_it in kinds.items() if is_it)} {name}{signature}"


@cache
def own_attributes(cls: type) -> set[str]:
    """Return what a class defines, and what its methods assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    assigned = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return assigned | vars(cls).keys() | vars(cls).get("__annotations__", {}).keys()


def test_the_release_that_is_installed_is_the_one_that_is_admitted():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pin,) = [requirement for requirement in map(Requirement, extras["swarm"]) if requirement.name == "hivemind"]
    assert str(pin.specifier) == f"=={version('hivemind')}"
    assert f"\nhivemind=={version('hivemind')}\n" in (ROOT / "requirements.txt").read_text()


@pytest.mark.parametrize(("owner", "declared"), LISTED)
def test_hivemind_still_declares_it_so(owner, declared):
    place, name = found(owner), name_of(declared)
    is_there = name in own_attributes(place) if inspect.isclass(place) else hasattr(place, name)
    assert is_there, f"{owner} has no {name}"
    assert declaration(place, name) == declared


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def modules() -> Iterator:
    """Iterate over the modules of the kit that may use hivemind."""
    for package in auth, swarm:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)


@cache
def kit_classes() -> dict[type, list[type]]:
    """Return each class of these modules, with the classes of hivemind that it stands before in some class."""
    found = [
        member
        for module in modules()
        for member in vars(module).values()
        if inspect.isclass(member) and member.__module__ == module.__name__
    ]
    return {
        cls: [base for other in found if cls in other.__mro__ for base in other.__mro__ if is_hiveminds(base)]
        for cls in found
    }


def is_hiveminds(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "hivemind"


def overridden() -> Iterator[tuple[str, str]]:
    """Iterate over what classes of the kit replace of hivemind's below them: methods, and anything private."""
    for cls, bases in kit_classes().items():
        theirs = set().union(*map(own_attributes, bases))
        for name in own_attributes(cls) & theirs:
            is_method = inspect.isfunction(vars(cls).get(name)) and not name.startswith("__")
            if is_method or (is_private(name) and name != "_abc_impl"):
                yield cls.__qualname__, name


class Uses(ast.NodeVisitor):
    """Collects the private names in a module that neither it nor the class that uses them defines."""

    def __init__(self, module) -> None:
        self.module, self.cls, self.names = module, None, set()
        tree = ast.parse(inspect.getsource(module))
        functions = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        stored = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
        self.defined = {*functions, *stored}
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.cls = self.cls, vars(self.module).get(node.name)
        self.generic_visit(node)
        self.cls = outer

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").startswith("hivemind"):
            self.names |= {alias.name for alias in node.names if is_private(alias.name)}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if not is_private(node.attr) or self.is_foreign(node.value):
            return
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self.cls is not None:
            family = [base for base in self.cls.__mro__ if base in kit_classes()]
            defined = set().union(*map(own_attributes, family))
        else:
            defined = self.defined
        if node.attr not in defined:
            self.names.add(node.attr)

    def is_foreign(self, value: ast.expr) -> bool:
        """Return whether this is a module that is not hivemind's, such as torch."""
        owner = vars(self.module).get(value.id) if isinstance(value, ast.Name) else None
        return inspect.ismodule(owner) and owner.__name__.partition(".")[0] != "hivemind"


def test_the_list_has_each_name_of_hivemind_that_the_kit_overrides_or_uses_in_private():
    needed = {(where, name) for where, name in overridden()}
    needed |= {(module.__name__, name) for module in modules() for name in Uses(module).names}
    listed = {name_of(declared) for _, declared in LISTED}
    missing = sorted(f"{where}: {name}" for where, name in needed if name not in listed)
    assert not missing, f"expected these in NAMES of dalle_lib/swarm/upstream.py: {missing}"


def test_the_list_has_nothing_that_the_kit_no_longer_uses():
    sources = "".join(inspect.getsource(module) for module in modules() if module is not swarm.upstream)
    names = {getattr(node, "attr", getattr(node, "name", None)) for node in ast.walk(ast.parse(sources))}
    names |= {node.id for node in ast.walk(ast.parse(sources)) if isinstance(node, ast.Name)}
    assert not {name_of(declared) for _, declared in LISTED} - names
