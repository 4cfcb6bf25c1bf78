"""Names that a package imports on first use, because their modules load slowly.

A module's import first imports its package: without this, `fl_dp.accounting.noise_schedule` would
load SciPy. Fast modules are imported as usual. The others stand twice:

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
    """A package's `__getattr__`, which Python calls for a missing name.

    Args:
        package: The package's `__name__`.
        module_of: Module inside the package, by exported name. No such name may be a module's:
            importing that module would replace it.
    """

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
