"""Expressions of Python as JavaScript. Each gives a reference of its own, which whoever takes it has to drop."""

import ast
from types import ModuleType

from machinery.translation.names import Names, Unsupported
from machinery.translation.scopes import COMPREHENSIONS, parameters_of, targets
from machinery.translation.values import plain

OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitOr: "|", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


class Expressions:
    """Translates the expressions of one function; `names` tells what its names are."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def owned(self, node: ast.expr) -> str:
        """Return an expression that gives a new reference."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")
        return method(node)

    def borrowed(self, node: ast.expr) -> str | None:
        """Return an expression without a reference of its own: a name, or attributes of one; None for any other."""
        if isinstance(node, ast.Name):
            return self.names.read(node.id)
        if isinstance(node, ast.Attribute) and isinstance(module := self.names.value_of(node.value), ModuleType):
            return self.names.world.reference(module, node.attr)
        if isinstance(node, ast.Attribute) and node.attr not in self.names.world.methods:
            inside = self.borrowed(node.value)
            return inside and f"{inside}.{node.attr}"
        return None

    def test(self, node: ast.expr) -> str:
        """Return a condition: a truth value of JavaScript."""
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return f"({sign.join(map(self.test, node.values))})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!{self.test(node.operand)}"
        return self.owned(node) if isinstance(node, ast.Compare) else f"$py.test({self.owned(node)})"

    def arguments(self, args: list[ast.expr], keywords: list[ast.keyword]) -> str:
        """Return the arguments of a call as its callers in JavaScript take them: an array, names, whether a star is."""
        named = [
            f"{one.arg}: {self.owned(one.value)}" if one.arg else f"...$py.named({self.owned(one.value)})"
            for one in keywords
        ]
        is_held = any(isinstance(one, ast.Starred) for one in args) or not all(one.arg for one in keywords)
        told = f"{{{', '.join(named)}}}" if named else "undefined"
        return f"[{self._elements(args)}], {told}, {str(is_held).lower()}"

    def function(self, node: ast.FunctionDef | ast.Lambda) -> str:
        """Return an inner function with the variables that it sees."""
        from machinery.translation.statements import code_of

        told = node.args
        pairs = list(zip(told.args[len(told.args) - len(told.defaults) :], told.defaults, strict=True))
        pairs += [(arg, default) for arg, default in zip(told.kwonlyargs, told.kw_defaults, strict=True) if default]
        defaults = ", ".join(f"{arg.arg}: {self.owned(default)}" for arg, default in pairs)
        cells = ", ".join(self.names.cells_for(node))
        return f"new $py.Callable({code_of(node, self.names)}, {{{defaults}}}, [{cells}])"

    def _elements(self, nodes: list[ast.expr]) -> str:
        return ", ".join(
            f"...$py.spread({self.owned(one.value)})" if isinstance(one, ast.Starred) else self.owned(one) for one in nodes
        )

    def _constant(self, node: ast.Constant) -> str:
        return plain(node.value)

    def _name(self, node: ast.Name) -> str:
        return f"$inc({self.names.read(node.id)})"

    def _attribute(self, node: ast.Attribute) -> str:
        if (borrowed := self.borrowed(node)) is not None:
            return f"$inc({borrowed})"
        return f'$py.get({self.owned(node.value)}, "{node.attr}")'

    def _subscript(self, node: ast.Subscript) -> str:
        if isinstance(node.slice, ast.Slice):
            ends = [self.owned(end) if end else "null" for end in (node.slice.lower, node.slice.upper)]
            return f"$py.slice({self.owned(node.value)}, {', '.join(ends)})"
        return f"$py.getItem({self.owned(node.value)}, {self.owned(node.slice)})"

    def _tuple(self, node: ast.Tuple) -> str:
        return f"new $py.Tuple([{self._elements(node.elts)}])"

    def _list(self, node: ast.List) -> str:
        return f"new $py.List([{self._elements(node.elts)}])"

    def _set(self, node: ast.Set) -> str:
        return f'$py.builtin("set", [{self._list(node)}])'

    def _dict(self, node: ast.Dict) -> str:
        pairs = [
            f"[{self.owned(key)}, {self.owned(value)}]" if key else f"...$py.pairs({self.owned(value)})"
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return f"$py.Dict.of([{', '.join(pairs)}])"

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        return f"[{', '.join(map(self.owned, node.values))}].join('')"

    def _formattedvalue(self, node: ast.FormattedValue) -> str:
        spec = self.owned(node.format_spec) if node.format_spec else '""'
        return f'$py.format({self.owned(node.value)}, {spec}, "{chr(node.conversion) if node.conversion > 0 else ""}")'

    def _binop(self, node: ast.BinOp) -> str:
        return self._operate(node.op, self.owned(node.left), self.owned(node.right))

    def _operate(self, operator: ast.AST, left: str, right: str) -> str:
        if isinstance(operator, ast.Sub):
            return f"({left} - {right})"
        return f'$py.operate("{OPERATORS[type(operator)]}", {left}, {right})'

    def _unaryop(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.Not):
            return self.test(node)
        if isinstance(node.op, ast.USub):
            return f"(-{self.owned(node.operand)})"
        raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")

    def _compare(self, node: ast.Compare) -> str:
        if len(node.ops) == 1:
            return self._operate(node.ops[0], self.owned(node.left), self.owned(node.comparators[0]))
        if len(node.ops) > 2:
            raise Unsupported(f"line {node.lineno}: {ast.unparse(node)}")
        middle, last = map(self.owned, node.comparators)
        first = self._operate(node.ops[0], self.owned(node.left), "$inc($middle)")
        return f"(($middle) => {first} && {self._operate(node.ops[1], '$middle', last)})({middle})"

    def _boolop(self, node: ast.BoolOp) -> str:
        name = "and" if isinstance(node.op, ast.And) else "or"
        first, *others = [self.owned(value) for value in node.values]
        for other in others:
            first = f"$py.{name}({first}, () => {other})"
        return first

    def _ifexp(self, node: ast.IfExp) -> str:
        return f"({self.test(node.test)} ? {self.owned(node.body)} : {self.owned(node.orelse)})"

    def _namedexpr(self, node: ast.NamedExpr) -> str:
        name = self.names.read(node.target.id)
        return f"$inc({name} = $py.swap({name}, {self.owned(node.value)}))"

    def _lambda(self, node: ast.Lambda) -> str:
        return self.function(node)

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and not self.names.is_library(node.func.value):
            arguments = self.arguments(node.args, node.keywords)
            return f'$py.method({self.owned(node.func.value)}, "{node.func.attr}", {arguments})'
        builtin = self.names.builtin_of(node.func)
        if builtin == "next" and isinstance(node.args[0], ast.GeneratorExp):
            otherwise = self.owned(node.args[1]) if len(node.args) > 1 else "$py.nothing()"
            return f"$py.otherwise({self._comprehension(node.args[0], True)}, () => {otherwise})"
        arguments = self.arguments(node.args, node.keywords)
        if builtin is None:
            return f"$py.call({self.owned(node.func)}, {arguments})"
        return f'$py.builtin("{builtin}", {arguments})'

    def _listcomp(self, node: ast.ListComp) -> str:
        return self._comprehension(node)

    _setcomp = _dictcomp = _generatorexp = _listcomp

    def _comprehension(self, node: ast.expr, only_first: bool = False) -> str:
        """Return what a comprehension or a generator gives, at once; with `only_first`, its first item or undefined."""
        from machinery.translation.statements import assign

        assert isinstance(node, COMPREHENSIONS)
        kind = {ast.DictComp: "Dict", ast.SetComp: "Collection"}.get(type(node), "List")
        opening, closing = "", ""
        for one in node.generators:
            walked = f"$py.walk({self.owned(one.iter)})"
            number = self.names.enter_comprehension(targets(one.target))
            own = [self.names.read(name) for name in sorted(targets(one.target))]
            source, place = f"$source{number}", f"$place{number}"
            opening += f"let {', '.join(own)}; const {source} = {walked};\n"
            opening += f"for (let {place} = 0; {place} < {source}.a.length; {place}++) {{\n"
            opening += assign(self, one.target, f"$inc({source}.a[{place}])")
            opening += "".join(f"if (!{self.test(condition)}) continue;\n" for condition in one.ifs)
            closing = f"}}\n$py.drop({source}); {self._drops(own)}{closing}"
        if only_first:
            body = f"return {self.owned(node.elt)};\n"
        elif isinstance(node, ast.DictComp):
            body = f"$result.put({self.owned(node.key)}, {self.owned(node.value)});\n"
        elif kind == "Collection":
            body = f"$py.method($inc($result), 'add', [{self.owned(node.elt)}]);\n"
        else:
            body = f"$result.a.push({self.owned(node.elt)});\n"
        for _ in node.generators:
            self.names.leave_comprehension()
        ending = "return undefined;" if only_first else "return $result;"
        return f"(() => {{ const $result = new $py.{kind}();\n{opening}{body}{closing}{ending} }})()"

    @staticmethod
    def _drops(names: list[str]) -> str:
        return "".join(f"$py.drop({name}); " for name in names)


def definition(node: ast.FunctionDef | ast.Lambda, code: str) -> str:
    """Return a function with the names of its parameters, of which one may have a star and one may have two."""
    names = ", ".join(f'"{name}"' for name in parameters_of(node))
    star, keywords = (f'"{one.arg}"' if one else "undefined" for one in (node.args.vararg, node.args.kwarg))
    return f"$py.define([{names}], {code}, {star}, {keywords})"
