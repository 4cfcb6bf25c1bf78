"""Names of a package that are imported when they are first asked for.

A command that needs little must not pay for torch or for dp-accounting: importing
`fl_dp.accounting.schedules` imports `fl_dp.accounting` first, and with it nothing else.

    >>> __getattr__ = lazy_exports(__name__, {"bounds": ("EpsilonBounds", "epsilon")})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: The package's `__name__`.
        modules: Module of the package -> the names that are taken from it. No name may be that of
            a module: importing the module would put it in the name's place.

    Returns:
        Imports a name's module at its first use and keeps the name in the package.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
