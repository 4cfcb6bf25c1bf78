"""What only some laws of cohorts have stands at these alone: the others have nothing to ask."""

from __future__ import annotations

import pytest

from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    OwnRatesSampling,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
)
from fl_dp.accounting.grouped_sampling import GroupedSampling
from fl_dp.accounting.sampling import BufferedSampling

COINS = PoissonSampling(sampling_rate=0.25)
TURNS = CyclicSampling(groups=4, inside=COINS)
RATES = OwnRatesSampling(budgets=(1.0, 4.0), shares=(0.5, 0.5), rates=(0.1, 0.3))
ALIKE = (
    COINS,
    TruncatedPoissonSampling(sampling_rate=0.25, max_cohort=9),
    FixedSizeSampling(cohort=3),
    VisibleSampling(cohort=3),
    BufferedSampling(cohort=3),
)
OF_GROUPS = {"num_groups", "next_group"}
OF_TURNS = {"group_at", "largest_group"}
OF_BUDGETS = {"own_groups", "event_for", "history_for", "with_scales"}


def asked(law: Sampling) -> set[str]:
    """What a law can be asked, besides what every law can."""
    return {name for name in dir(law) if not name.startswith("_")} - set(dir(Sampling))


@pytest.mark.parametrize("law", ALIKE, ids=lambda law: law.kind)
def test_a_law_without_groups_can_t_be_asked_for_any(law: Sampling) -> None:
    assert not isinstance(law, GroupedSampling)
    assert not asked(law) & (OF_GROUPS | OF_TURNS | OF_BUDGETS)


def test_laws_with_groups_have_turns_or_budgets() -> None:
    assert asked(TURNS) >= OF_GROUPS | OF_TURNS
    assert not asked(TURNS) & OF_BUDGETS
    assert asked(RATES) >= OF_GROUPS | OF_BUDGETS
    assert not asked(RATES) & OF_TURNS


def test_every_law_tells_the_same_four_facts_of_who_takes_part() -> None:
    facts = {"visible", "cap", "least_separation", "of_declared"}
    own = {name for name, value in vars(Sampling).items() if isinstance(value, property)}
    assert own == facts
