"""Plans of records, from what a test is about."""

from __future__ import annotations

from typing import Any

from fl_dp import PrivacyBudget
from fl_dp.plan import RecordPlan


def record_plan(*, epsilon: float = 1e15, delta: float = 1e-5, **changes: Any) -> RecordPlan:
    """A plan of one step on all records, with so little noise that the sum is seen."""
    fields: dict[str, Any] = dict(
        budget=PrivacyBudget(epsilon=epsilon, delta=delta),
        noise_multiplier=1e-5,
        sampling_rate=1.0,
        steps=1,
        participations=1,
        clipping_norm=1.0,
    )
    return RecordPlan(**(fields | changes))
