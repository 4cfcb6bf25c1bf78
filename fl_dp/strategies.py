"""Loads the folder `strategies/` of a checkout, or of the bundle that `flwr run` builds.

In a wheel the folder itself is here. The `strategies/` folder of a user's project would hide a
top-level package of that name. So it is loaded by its path, under the one name that works
everywhere: `fl_dp.strategies`.
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
