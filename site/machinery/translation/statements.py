"""Statements and functions of Python as JavaScript."""

import ast

from machinery.translation.expressions import Expressions, definition
from machinery.translation.names import Names, Unsupported, variable
from machinery.translation.scopes import FUNCTIONS, Scope


class Body:
    """Translates the statements of one function."""

    def __init__(self, names: Names) -> None:
        self.names, self.expressions = names, Expressions(names)
        self.hidden: list[str] = []
        """Variables that only the translation has: what loops walk through, and how blocks of `with` end."""
        self.open: list[str] = []
        self.after_yield = False

    def block(self, nodes: list[ast.stmt]) -> str:
        """Return the statements, one after another."""
        return "".join(self.statement(node) for node in nodes)

    def statement(self, node: ast.stmt) -> str:
        """Return one statement. Raises Unsupported for one that has no translation."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")
        return method(node)

    def leave(self, value: str = "null") -> str:
        """Return the end of the function: its value is computed, then what it held is dropped."""
        ends = "".join(f"{name}(); " for name in reversed(self.open))
        own = [variable(name) for name in sorted(self.names.scope.own)]
        held = ", ".join([*own, *(name for name in self.hidden if name.startswith("$source"))])
        return f"{{ const $result = {value}; {ends}[{held}].forEach($py.drop); return $result; }}\n"

    def _expr(self, node: ast.Expr) -> str:
        if isinstance(node.value, ast.Constant):
            return ""
        return f"$py.drop({self.expressions.owned(node.value)});\n"

    def _pass(self, node: ast.Pass) -> str:
        return ""

    def _return(self, node: ast.Return) -> str:
        return self.leave(self.expressions.owned(node.value) if node.value else "null")

    def _assign(self, node: ast.Assign) -> str:
        value = self.expressions.owned(node.value)
        if len(node.targets) == 1:
            return assign(self.expressions, node.targets[0], value)
        parts = "".join(assign(self.expressions, target, "$inc($value)") for target in node.targets)
        return f"{{ const $value = {value};\n{parts}$py.drop($value); }}\n"

    def _annassign(self, node: ast.AnnAssign) -> str:
        return assign(self.expressions, node.target, self.expressions.owned(node.value)) if node.value else ""

    def _augassign(self, node: ast.AugAssign) -> str:
        value = self.expressions.owned(node.value)
        if isinstance(node.op, ast.Sub):
            value = f"-({value})"
        elif not isinstance(node.op, ast.Add):
            raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")
        if isinstance(node.target, ast.Subscript):
            holder, key = self.expressions.owned(node.target.value), self.expressions.owned(node.target.slice)
            old = "$py.getItem($inc($holder), $inc($key))"
            return (
                f"{{ const $holder = {holder}, $key = {key};\n"
                f"$py.setItem($holder, $key, $py.addTo({old}, {value})); }}\n"
            )
        place = self.expressions.borrowed(node.target)
        return f"{place} = $py.addTo({place}, {value});\n"

    def _delete(self, node: ast.Delete) -> str:
        names = [self.names.read(target.id) for target in node.targets]
        return "".join(f"{name} = $py.drop({name});\n" for name in names)

    def _if(self, node: ast.If) -> str:
        otherwise = f" else {{\n{self.block(node.orelse)}}}" if node.orelse else ""
        return f"if ({self.expressions.test(node.test)}) {{\n{self.block(node.body)}}}{otherwise}\n"

    def _while(self, node: ast.While) -> str:
        return f"while ({self.expressions.test(node.test)}) {{\n{self.block(node.body)}}}\n"

    def _for(self, node: ast.For) -> str:
        number = len(self.hidden)
        source, place = f"$source{number}", f"$place{number}"
        self.hidden.append(source)
        item = assign(self.expressions, node.target, f"$inc({source}.a[{place}])")
        return (
            f"{source} = $py.walk({self.expressions.owned(node.iter)});\n"
            f"for (let {place} = 0; {place} < {source}.a.length; {place}++) {{\n{item}{self.block(node.body)}}}\n"
            f"{source} = $py.drop({source});\n"
        )

    def _break(self, node: ast.Break) -> str:
        return "break;\n"

    def _continue(self, node: ast.Continue) -> str:
        return "continue;\n"

    def _with(self, node: ast.With) -> str:
        name = f"$end{len(self.hidden)}"
        self.hidden.append(name)
        opening = f"{name} = {self.expressions.owned(node.items[0].context_expr)};\n"
        self.open.append(name)
        body = self.block(node.body)
        self.open.pop()
        return f"{opening}{body}{name}();\n"

    def _raise(self, node: ast.Raise) -> str:
        if not isinstance(node.exc, ast.Call) or ast.unparse(node.exc.func) not in ("ValueError", "NotImplementedError"):
            return f"throw new $py.ValueError({ast.unparse(node.exc)!r});\n" if node.exc else "throw $error;\n"
        return f"throw new $py.ValueError({self.expressions.owned(node.exc.args[0])});\n"

    def _try(self, node: ast.Try) -> str:
        [handler] = node.handlers
        if ast.unparse(handler.type) != "ValueError" or node.orelse or node.finalbody:
            raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")
        return (
            f"try {{\n{self.block(node.body)}}} catch ($error) {{\n"
            f"if (!($error instanceof $py.ValueError)) throw $error;\n{self.block(handler.body)}}}\n"
        )

    def _functiondef(self, node: ast.FunctionDef) -> str:
        return assign(self.expressions, ast.Name(node.name, ast.Store()), self.expressions.function(node))


def assign(expressions: Expressions, target: ast.expr, value: str) -> str:
    """Return the statements that give `target` a value, an expression with a reference of its own."""
    if isinstance(target, ast.Name):
        place = expressions.names.read(target.id)
        return f"{place} = $py.swap({place}, {value});\n"
    if isinstance(target, ast.Attribute):
        holder = expressions.borrowed(target.value)
        return f'$py.set({holder}, "{target.attr}", {value});\n'
    if isinstance(target, ast.Subscript):
        holder, key = expressions.owned(target.value), expressions.owned(target.slice)
        return f"{{ const $value = {value}; $py.setItem({holder}, {key}, $value); }}\n"
    expressions.names.world.comprehensions += 1
    name = f"$parts{expressions.names.world.comprehensions}"
    star = next((place for place, one in enumerate(target.elts) if isinstance(one, ast.Starred)), None)
    told = f"{len(target.elts)}{'' if star is None else f', {star}'}"
    parts = [one.value if isinstance(one, ast.Starred) else one for one in target.elts]
    inside = "".join(assign(expressions, one, f"{name}[{place}]") for place, one in enumerate(parts))
    return f"{{ const {name} = $py.unpack({value}, {told});\n{inside}}}\n"


def code_of(node: ast.FunctionDef | ast.Lambda, outer: Names) -> str:
    """Return a function inside another one, or inside none if `outer` has no scope."""
    names = outer.inside(node)
    body = Body(names)
    if isinstance(node, ast.Lambda):
        inside = body.leave(body.expressions.owned(node.body))
    elif any(isinstance(one, ast.Expr) and isinstance(one.value, ast.Yield) for one in node.body):
        place = next(i for i, one in enumerate(node.body) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Yield))
        before, after = body.block(node.body[:place]), body.block(node.body[place + 1 :])
        inside = f"{before}return () => {{\n{after}{body.leave()}}};\n"
    else:
        inside = body.block(node.body) + body.leave()
    return definition(node, f"function ({_parameters(names.scope)}) {{\n{_opening(body, node)}{inside}}}")


def _parameters(scope: Scope) -> str:
    return ", ".join(f"$of_{name}" if name in scope.cells else variable(name) for name in scope.parameters)


def _opening(body: Body, node: ast.FunctionDef | ast.Lambda) -> str:
    """Return the variables of a function, and the defaults of one that is no inner function."""
    scope, lines = body.names.scope, []
    if body.names.outer.scope is EMPTY:
        told = node.args
        pairs = list(zip(told.args[len(told.args) - len(told.defaults) :], told.defaults, strict=True))
        pairs += [(arg, default) for arg, default in zip(told.kwonlyargs, told.kw_defaults, strict=True) if default]
        for arg, default in pairs:
            name = f"$of_{arg.arg}" if arg.arg in scope.cells else variable(arg.arg)
            lines.append(f"if ({name} === undefined) {name} = {body.expressions.owned(default)};\n")
    for name in sorted(scope.own):
        if name in scope.cells:
            first = f"$of_{name}" if name in scope.parameters else ""
            lines.append(f"const {variable(name)} = new $py.Cell({first});\n")
        elif name not in scope.parameters:
            lines.append(f"let {variable(name)};\n")
    lines += [f"let {name};\n" for name in body.hidden]
    return "".join(lines)


EMPTY = Scope(set(), [])
"""The scope around functions of a module."""
assert FUNCTIONS
