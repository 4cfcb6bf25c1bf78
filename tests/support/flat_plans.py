"""Plans of any kind from flat keywords, for tests of many kinds."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

from fl_dp.accounting import OwnRatesSampling, PoissonSampling, PrivacyBudget, Sampling, freeze
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.mechanisms import FixedClipping
from fl_dp.option_errors import IncompatibleOptions
from fl_dp.plan import (
    BufferedPlan,
    CentralPlan,
    CorrelatedPlan,
    DistributedPlan,
    DistributedRecordsPlan,
    GroupedPlan,
    LocalPlan,
    Plan,
)
from fl_dp.plan.fields import plan_of


def calibrated_plan(budget: PrivacyBudget, **flat: Any) -> Plan:
    """A plan with the noise that its budget, of the whole training, asks for.

    The keywords are fields of the resulting kind: `secure_sum` and `nodes` are of noise in shares,
    `client_scheme` of noise at clients, and so on. `sampling_rate` is short for Poisson sampling,
    `participation_cap` for the law's, and `clipping_norm` for a fixed norm.
    """
    return flat_plan(budget, **flat).calibrated()


def noised_plan(
    noise_multiplier: float, *, delta: float, max_epsilon: float | None = None, **flat: Any
) -> Plan:
    """A plan with its own noise, whose budget is what it spends, or `max_epsilon`."""
    budget = PrivacyBudget(epsilon=max_epsilon or 1.0, delta=delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is returned warns
        plan = flat_plan(budget, noise_multiplier=noise_multiplier, **flat)
    return plan.with_spent_budget() if max_epsilon is None else plan.require_fits()


def flat_plan(budget: PrivacyBudget, **flat: Any) -> Plan:
    """A plan as it is, a draft where `noise_multiplier` is left out."""
    given = {name: value for name, value in flat.items() if value is not None}
    sampling = _sampling_of(given)
    kind = _kind_of(given, sampling)
    if "client_scheme" in given:
        given["scheme"] = given.pop("client_scheme")
    if kind is DistributedRecordsPlan:
        given["max_records"] = given.pop("units_per_node", 1)
        given["num_records"], given["num_clients"] = given.pop("num_clients"), given.pop("nodes")
        given.pop("coins_at_nodes", None)  # implied
    if "clipping_norm" in given:
        given["clipping"] = FixedClipping(norm=given.pop("clipping_norm"))
    given["other_releases"] = freeze(given.get("other_releases", ()))
    given.setdefault("noise_multiplier", math.nan)
    return plan_of(kind, {"budget": budget, "sampling": sampling, **given})


def _sampling_of(given: dict[str, Any]) -> Sampling:
    law: Any = given.pop("sampling", None)
    if "sampling_rate" in given:
        law = PoissonSampling(sampling_rate=given.pop("sampling_rate"))
    if "participation_cap" in given:
        cap = given.pop("participation_cap")
        if not hasattr(law, "participation_cap"):
            raise IncompatibleOptions(f"{{participation_cap}} means nothing for {law}")
        law = replace(law, participation_cap=cap)
    sampling: Sampling = law
    return sampling


def _kind_of(given: dict[str, Any], sampling: Sampling) -> type[Plan]:
    if "secure_sum" in given:
        return DistributedRecordsPlan if "nodes" in given else DistributedPlan
    if "client_scheme" in given:
        return LocalPlan
    if "correlation" in given:
        return CorrelatedPlan
    if isinstance(sampling, BufferedSampling):
        return BufferedPlan
    if isinstance(sampling, OwnRatesSampling):
        return GroupedPlan
    return CentralPlan
