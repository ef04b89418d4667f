"""Which names a function has of its own, and which of them functions inside it see."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Scope:
    """The variables of one function."""

    own: set[str]
    """Names that the function binds: parameters and variables."""
    parameters: list[str]
    cells: set[str] = field(default_factory=set)
    """Those of `own` that functions inside it use."""


def scope_of(function: ast.FunctionDef | ast.Lambda) -> Scope:
    """Return the variables of a function."""
    parameters = parameters_of(function)
    body = function.body if isinstance(function, ast.FunctionDef) else [function.body]
    own = set(parameters) | {name for node in body for name in _bound(node)}
    inner = [one for node in body for one in _functions_in(node)]
    return Scope(own, parameters, own & {name for one in inner for name in free_names(one)})


def parameters_of(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    """Return the names of all parameters: positional, the one with a star, those only by name, the one with two."""
    told = function.args
    star, keywords = ([one.arg] if one else [] for one in (told.vararg, told.kwarg))
    return [*(one.arg for one in [*told.posonlyargs, *told.args]), *star, *(one.arg for one in told.kwonlyargs), *keywords]


def free_names(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Return the names that a function uses and does not bind, those of functions inside it included."""
    scope = scope_of(function)
    body = function.body if isinstance(function, ast.FunctionDef) else [function.body]
    used = {name for node in body for name in _used(node)}
    return used - scope.own


def targets(node: ast.AST) -> set[str]:
    """Return the names that a target of an assignment, a loop or a comprehension binds."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, without the inside of functions; of these, only their defaults."""
    yield node
    children = ast.iter_child_nodes(node)
    if isinstance(node, FUNCTIONS):
        children = [one for one in [*node.args.defaults, *node.args.kw_defaults] if one]
    for child in children:
        yield from _parts(child)


def _functions_in(node: ast.AST) -> list[ast.FunctionDef | ast.Lambda]:
    return [one for one in _parts(node) if isinstance(one, FUNCTIONS)]


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its function: not those of a comprehension, but those of := in it."""
    inside = {id(name) for one in _parts(node) if isinstance(one, ast.comprehension) for name in ast.walk(one.target)}
    for one in _parts(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and id(one) not in inside:
            yield one.id
        elif isinstance(one, ast.FunctionDef):
            yield one.name
        elif isinstance(one, ast.ExceptHandler) and one.name:
            yield one.name


def _used(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement reads, without those that comprehensions bind for themselves."""
    if isinstance(node, FUNCTIONS):
        yield from free_names(node)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default:
                yield from _used(default)
        return
    if isinstance(node, COMPREHENSIONS):
        own = {name for one in node.generators for name in targets(one.target)}
        yield from {name for child in ast.iter_child_nodes(node) for name in _used(child)} - own
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _used(child)
