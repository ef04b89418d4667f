"""Names of a package that are imported when they are first used, so that importing the package stays quick."""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names live in its modules.

    `homes` gives the names of each module, whose path is relative to the package. Source: PEP 562.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def get_attribute(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    def list_names() -> list[str]:
        return sorted(vars(sys.modules[package]).keys() | module_of.keys())

    return get_attribute, list_names, sorted(module_of)
