"""For all tests: nothing is read from or written to the user's cache of calibrations."""

from __future__ import annotations

import os

from fl_dp.accounting.calibration_cache import SWITCH

os.environ[SWITCH] = "off"  # at import, as plans of module level are calibrated, too
