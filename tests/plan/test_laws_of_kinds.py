"""A kind of plan has the laws of cohorts that its rounds are made by, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from fl_dp.accounting import PrivacyBudget
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.plan import Banded, CentralPlan, CorrelatedPlan, DistributedPlan, Plan, SecureSum

BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-4)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (CentralPlan, {}),
        (CorrelatedPlan, {"correlation": Banded.optimal(rounds=10, bands=4)}),
        (DistributedPlan, {"secure_sum": SecureSum()}),
    ],
)
def test_a_buffer_is_no_cohort_that_is_seen(kind: type[Plan], own: dict[str, Any]) -> None:
    law = BufferedSampling(cohort=5, separation=4)
    with pytest.raises(ValueError, match=f"a {kind.kind} plan has cohorts by .*, got sampling="):
        kind(budget=BUDGET, rounds=10, num_clients=100, sampling=law, **own)
