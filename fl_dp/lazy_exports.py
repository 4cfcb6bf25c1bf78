"""Names of a package that are imported when they are first asked for.

A command that needs little must not pay for torch or for dp-accounting: importing
`fl_dp.accounting.schedules` imports `fl_dp.accounting` first, and with it nothing else.

A package writes its imports once, for type checkers, and this reads them:

    if TYPE_CHECKING:
        from .bounds import EpsilonBounds, epsilon
    else:
        __getattr__ = lazy_exports(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_exports(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose imports stand under `if TYPE_CHECKING:`.

    No name may be that of one of the package's modules: importing the module would put it in the
    name's place.

    Args:
        package: The package's `__name__`.
    """
    module_of = dict(_imported_names(sys.modules[package]))

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(module_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def _imported_names(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each name that the package imports for type checkers, and the module it is in."""
    loader = None if package.__spec__ is None else package.__spec__.loader
    source = loader.get_source(package.__name__)  # type: ignore[union-attr]  # of every source file
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.If) or ast.unparse(statement.test) != "TYPE_CHECKING":
            continue
        for each in statement.body:
            if isinstance(each, ast.ImportFrom):
                module = "." * each.level + (each.module or "")
                yield from ((alias.name, module) for alias in each.names)
