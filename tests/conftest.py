"""For all tests: one thread a process, and nothing read from or written to the user's cache.

Two workers with two threads each on two processors wait for one another: models as small as a
test's then take seven times the processor's time. Processes that a test starts inherit it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy or PyTorch is imported, which read it

from fl_dp.accounting.calibration_cache import SWITCH

os.environ[SWITCH] = "off"  # at import, as plans of module level are calibrated, too
