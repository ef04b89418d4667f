"""Makes the kit's functions check types and shapes of what they get and return, while tests run.

`dalle_lib.memory` is left out: it has no tensors, and an estimate makes hundreds of thousands of calls, which took 15
times as long with checks. Import this before anything of the kit.
"""

import dataclasses
import functools
import inspect
import pkgutil
import typing
from collections.abc import Callable
from pathlib import Path

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, install_import_hook

PACKAGE = Path(__file__).parent.parent / "dalle_lib"
UNCHECKED = {"memory"}
CHECKED = [f"{PACKAGE.name}.{each.name}" for each in pkgutil.iter_modules([PACKAGE]) if each.name not in UNCHECKED]

with_shapes = jaxtyping.jaxtyped
types_alone = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))


def is_plain(hint: object) -> bool:
    """Return whether beartype alone can check a type: it holds no array with a shape, and nothing to be looked up."""
    if typing.get_origin(hint) is typing.Literal:
        return True
    has_shape = inspect.isclass(hint) and issubclass(hint, AbstractArray)
    if has_shape or isinstance(hint, str | typing.ForwardRef):
        return False
    return all(map(is_plain, hint if isinstance(hint, list | tuple) else typing.get_args(hint)))


def checked(given: Callable | None = None, *, typechecker: Callable) -> Callable:
    """Decorate a function, or a data class, in place of jaxtyping's `jaxtyped`.

    That takes 2 ms for each function, most of which are never called, so it is done at a function's first call. And it
    keeps the sizes in shapes for the time of a call, and checks what is given twice, which takes ten times as long as
    beartype alone. Where no type has a shape, that finds the same.
    """
    if given is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(given):
        if dataclasses.is_dataclass(given) and not hasattr(given.__init__, "__wrapped__"):
            given.__init__ = checked(given.__init__, typechecker=typechecker)
        return given
    if not inspect.isfunction(given):
        return with_shapes(given, typechecker=typechecker)
    checking = None

    @functools.wraps(given)
    def check(*args, **kwargs):
        nonlocal checking
        if checking is None:
            is_simple = all(map(is_plain, given.__annotations__.values())) and not inspect.isgeneratorfunction(given)
            checking = types_alone(given) if is_simple else with_shapes(given, typechecker=typechecker)
        return checking(*args, **kwargs)

    return check


jaxtyping.jaxtyped = checked
install_import_hook(CHECKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
