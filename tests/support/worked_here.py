"""Secure sums' work done in the test's own process, for tests that look into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest


class WorkedHere:
    """An `Apart` that is not apart, and has all the time it needs."""

    def __init__(self, work: Callable[[], Any], size: int, *, until: float) -> None:
        self.work = work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing is left to end."""

    def result(self) -> Any:
        """What the work returns; None if it raises."""
        try:
            return np.asarray(self.work(), dtype=np.float64)
        except Exception:
            return None


def work_here(patch: pytest.MonkeyPatch) -> None:
    """Let no node fork."""
    for name in ("owner.mod_host", "units"):
        patch.setattr(f"fl_dp.clients.{name}.Apart", WorkedHere)
