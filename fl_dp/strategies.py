"""Stands for the folder `strategies/` in a checkout and in the bundle that `flwr run` builds.

In a wheel the folder itself lies here. A top-level package of that name would be hidden by the
`strategies/` folder of a user's project, so it is loaded by its path, under the one name
that works everywhere: `fl_dp.strategies`.
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
