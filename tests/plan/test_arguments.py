"""Arguments of public classes: a wrong one is one line that names it, a right one may look else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kind_trainings import PLANS

from fl_dp import PrivacyBudget
from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    PoissonSampling,
    TruncatedPoissonSampling,
    VisibleSampling,
    default_delta,
)
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.clients import DPSGD
from fl_dp.mechanisms import (
    AdaptiveClipping,
    ExponentialMechanism,
    FixedClipping,
    GaussianMechanism,
    LaplaceMechanism,
    PerLayerClipping,
    ScalarMetric,
)
from fl_dp.plan import RecordPlan, SecureSum
from fl_dp.strategies import BufferedSelection, DPFedAvg, ExponentialSelection
from fl_dp.updates import Compression

Make = Callable[..., Any]


def plan_like(kind: str) -> Make:
    draft = PLANS[kind]()
    usual = {field.name: getattr(draft, field.name) for field in fields(draft)}
    return of(type(draft), **usual)


def buffered(**given: Any) -> BufferedSelection:
    return BufferedSelection(BufferedSampling(cohort=2), **given)


def exponential(**given: Any) -> ExponentialSelection:
    return ExponentialSelection(VisibleSampling(cohort=2), **({"epsilon": 1.0} | given))


def of(kind: type, **usual: Any) -> Make:
    return lambda **changes: kind(**(usual | changes))


BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-3)
RECORDS: dict[str, Any] = {
    "budget": BUDGET,
    "noise_multiplier": 1.0,
    "sampling_rate": 0.1,
    "steps": 2,
    "participations": 3,
    "clipping_norm": 1.0,
}
COUNTS: list[tuple[Make, str]] = [
    *((plan_like(kind), "num_clients") for kind in PLANS),
    *((plan_like(kind), "rounds") for kind in PLANS),
    (plan_like("central"), "units_per_node"),
    (plan_like("distributed_records"), "num_records"),
    (plan_like("distributed_records"), "max_records"),
    (of(RecordPlan, **RECORDS), "steps"),
    (of(PoissonSampling, sampling_rate=1.0), "participation_cap"),
    (of(TruncatedPoissonSampling, sampling_rate=0.5, max_cohort=3), "max_cohort"),
    (of(FixedSizeSampling, cohort=3), "cohort"),
    (of(VisibleSampling, cohort=3), "cohort"),
    (of(CyclicSampling, groups=2, inside=PoissonSampling(sampling_rate=0.5)), "groups"),
    (of(NoiseSchedule, name="step"), "levels"),
    (of(Compression, up="quantize"), "bits"),
    (of(DPSGD), "physical_batch_size"),
    (of(SecureSum), "committee"),
    (buffered, "concurrency"),
    (exponential, "records_per_client"),
    (default_delta, "num_clients"),
]
NUMBERS: list[tuple[Make, str]] = [
    (of(PrivacyBudget, epsilon=1.0, delta=1e-3), "epsilon"),
    (of(PrivacyBudget, epsilon=1.0, delta=1e-3), "delta"),
    (plan_like("central"), "total_weight"),
    (of(RecordPlan, **RECORDS), "noise_multiplier"),
    (of(PoissonSampling, sampling_rate=1.0), "sampling_rate"),
    (of(TruncatedPoissonSampling, sampling_rate=0.5, max_cohort=3), "sampling_rate"),
    (of(NoiseSchedule, name="step"), "floor"),
    (of(FixedClipping), "norm"),
    (of(AdaptiveClipping), "norm"),
    (of(AdaptiveClipping), "target_quantile"),
    (of(GaussianMechanism, noise_multiplier=1.0, clipping_norm=1.0), "noise_multiplier"),
    (of(LaplaceMechanism, noise_multiplier=1.0, clipping_norm=1.0), "noise_multiplier"),
    (of(ExponentialMechanism, epsilon=1.0, sensitivity=1.0), "epsilon"),
    (of(Compression, up="top_k"), "fraction"),
    (of(DPSGD), "expected_batch_size"),
    (of(SecureSum), "element_cap"),
    (exponential, "epsilon"),
    (exponential, "utility_high"),
]
WRONG: list[Any] = [-5, 0, math.nan, math.inf, True, "3", 1 + 2j, [3], np.array([3, 4])]


@pytest.mark.parametrize(("make", "name"), [*COUNTS, *NUMBERS])
def test_a_wrong_number_is_one_line_that_names_it(make: Make, name: str) -> None:
    for wrong in WRONG:
        with pytest.raises((ValueError, TypeError)) as refused:
            make(**{name: wrong})
        said = str(refused.value)
        assert name in said, wrong
        assert "\n" not in said


SPELLED: list[tuple[Make, str, Any, Any]] = [
    (plan_like("central"), "rounds", 20, np.int64(20)),
    (plan_like("local"), "num_clients", 20, np.array(20)),
    (plan_like("central"), "noise_multiplier", 2.0, torch.tensor(2.0)),
    (plan_like("central"), "metrics", (), []),
    (of(PrivacyBudget, epsilon=1.0, delta=0.5), "delta", 0.25, np.float32(0.25)),
    (of(PerLayerClipping), "norms", (1.0, 2.0), [np.float32(1.0), torch.tensor(2)]),
    (of(PerLayerClipping), "norms", (1.0, 2.0), np.array([1.0, 2.0])),
    (of(VisibleSampling, cohort=3), "participation_cap", 2, torch.tensor(2)),
    *(
        (plan_like(kind), "neighboring_relation", NeighboringRelation.ZERO_OUT, "zero-out")
        for kind in PLANS
    ),
]


@pytest.mark.parametrize(("make", "name", "value", "spelled"), SPELLED)
def test_what_means_the_same_is_the_same(make: Make, name: str, value: Any, spelled: Any) -> None:
    made, like = make(**{name: spelled}), make(**{name: value})
    assert vars(made) == vars(like)
    assert type(vars(made)[name]) is type(value)


@pytest.mark.parametrize(
    ("make", "misspelt", "right"),
    [
        (plan_like("central"), "num_client", "num_clients"),
        (of(PrivacyBudget, epsilon=1.0, delta=0.1), "epsilom", "epsilon"),
        (of(PoissonSampling, sampling_rate=0.5), "rate", "sampling_rate"),
        (of(FixedClipping, norm=1.0), "nrom", "norm"),
        (of(ScalarMetric, name="loss", low=0.0, high=1.0), "hihg", "high"),
        (of(Compression), "bit", "bits"),
        (of(DPSGD), "criterium", "criterion"),
    ],
)
def test_an_unknown_name_is_told_what_there_is(make: Make, misspelt: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"no argument '{misspelt}': .*\b{right}\b"):
        make(**{misspelt: 1})


def test_a_budget_for_the_strategy_itself_is_sent_to_with_budget(tmp_path: Path) -> None:
    class Own(DPFedAvg):
        """A subclass without a constructor of its own."""

    for kind in (DPFedAvg, Own):
        with pytest.raises(TypeError, match=rf"write {kind.__name__}\.with_budget\(epsilon="):
            kind(epsilon=3)  # type: ignore[call-arg]  # on purpose
    assert not list(tmp_path.iterdir())
