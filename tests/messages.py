"""The messages of the kit's code, found in its syntax: what it logs, raises, tells of peers, refuses and checks."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkout import ROOT

PACKAGE = ROOT / "dalle_lib"
HOLE = "…"
"""Stands for what a message fills in when it is written."""
LOGGED = ("warning", "error", "exception", "critical")
TOLD_OF_OTHERS = ("tell", "_avoid")
"""Functions whose second argument is what went wrong with the peer that is the first."""
FOUND_WRONG = re.compile("problem|refusal|failure|reason|_outcome|_doubts")
"""Names of functions and variables that hold what is wrong."""


def messages_in(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each kind and text of the messages in a module; a kind is `raise ValueError`, `log`, `check` and such."""
    for scope in ast.walk(ast.parse(file.read_text())):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            own = list(_own_nodes(scope))
            names = dict(_constants(own))
            is_finding = FOUND_WRONG.search(getattr(scope, "name", ""))
            for node in own:
                yield from _messages(node, names)
                if is_finding and isinstance(node, ast.Return) and node.value is not None:
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                    yield from (("return", text) for text in map(_text, values))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module or function without those of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


def _constants(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
            yield from ((target.id, value) for target, value in pairs if isinstance(target, ast.Name))


def _messages(node: ast.AST, names: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        error = _name(node.exc.func)
        if error[:1].isupper() and error != "Refusal":  # the rest are functions, and errors for this module alone
            yield f"raise {error}", max(map(_text, node.exc.args), key=len, default="")
    if isinstance(node, ast.Assign) and (to := FOUND_WRONG.search(ast.unparse(node.targets[0]))):
        yield ("tell" if to[0] == "_doubts" else "found"), _text(node.value)
    if not isinstance(node, ast.Call):
        return
    function, texts = _name(node.func), [_text(argument) for argument in node.args]
    if function in LOGGED and texts:
        yield "log", re.sub(r"%[-.\d]*[sdrfg]", HOLE, texts[0])
    elif function in TOLD_OF_OTHERS and len(texts) > 1:
        yield "tell", texts[1]
    elif function == "write":
        yield from (("event", _text(each.value)) for each in node.keywords if each.arg in ("problem", "error"))
    elif function in ("Refusal", "Problem"):
        yield function, " ".join(texts[1:])
    elif function == "_away":
        yield "raise AuthorityAway", f"the authority of {HOLE}, {HOLE}, {texts[0]}"
    elif function == "_say":
        yield "say", texts[0]
    elif function in ("Check", "require"):
        subject = node.args[0]
        what = _text(names.get(subject.id, subject) if isinstance(subject, ast.Name) else subject)
        can_fail = function == "require" or not (isinstance(node.args[3], ast.Constant) and node.args[3].value)
        if can_fail or len(texts) > 4:
            yield "check", f"{'FAILED' if can_fail else 'note'} {what} {texts[2]} → {texts[-1]}"


def _text(node: ast.expr) -> str:
    """Return a text as the code writes it, with a hole for each value; of two, the one beside the other."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(value.value if isinstance(value, ast.Constant) else HOLE for value in values)
        case ast.BinOp(left=left):
            return _text(left)
        case ast.IfExp(body=body, orelse=other):
            return " ".join(text for text in (_text(body), _text(other)) if text != HOLE) or HOLE
    return HOLE


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
