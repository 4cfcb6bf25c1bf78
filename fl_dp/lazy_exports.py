"""Names that a package imports when they are first asked for, because their modules load slowly.

Importing a module imports its package first: without this, `fl_dp.accounting.schedules` would load
SciPy. What loads fast is imported as usual. The rest stands twice:

    if TYPE_CHECKING:  # for type checkers and editors
        from .bounds import epsilon
    else:  # for Python
        __getattr__ = lazy_exports(__name__, {"epsilon": "bounds"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which Python calls for a name that is not there yet.

    Args:
        package: The package's `__name__`.
        module_of: The module inside the package that each name is imported from. No name may be
            that of a module of the package: importing the module would take the name's place.
    """

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
