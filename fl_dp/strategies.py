"""Loads `strategies/` from a checkout, or from the bundle of `flwr run`.

In a wheel the folder itself is here. A user's own `strategies/` would hide a top-level package of
that name. So it is loaded by path, under the name that works everywhere: `fl_dp.strategies`.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies import *  # noqa: F403
else:
    _folder = Path(__file__).resolve().parents[1] / "strategies"
    _spec = importlib.util.spec_from_file_location(
        __name__, _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    sys.modules[__name__] = _package = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_package)
