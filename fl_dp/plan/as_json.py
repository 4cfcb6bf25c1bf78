"""Plans read from plain JSON values: `kind` says which class the other fields are of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fl_dp.accounting import NeighboringRelation, NoiseSchedule, PrivacyBudget, freeze
from fl_dp.accounting.events import history_from_list
from fl_dp.accounting.sampling import sampling_from_dict
from fl_dp.documents import known_kind
from fl_dp.mechanisms import ScalarMetric
from fl_dp.mechanisms.clipping_rules import clipping_from_dict

from .buffered import BufferedPlan
from .central import CentralPlan
from .correlated import CorrelatedPlan
from .correlation import Banded
from .distributed import DistributedPlan
from .distributed_noise import SecureSum
from .distributed_records import DistributedRecordsPlan
from .grouped import GroupedPlan
from .local import LocalPlan
from .plan import Plan

KINDS: dict[str, type[Plan]] = {
    plan.kind: plan
    for plan in (
        CentralPlan,
        CorrelatedPlan,
        BufferedPlan,
        GroupedPlan,
        LocalPlan,
        DistributedPlan,
        DistributedRecordsPlan,
    )
}
"""Every kind of plan, by the name that it is written with."""

_READ: dict[str, Callable[[Any], Any]] = {
    "budget": lambda fields: PrivacyBudget(**fields),
    "neighboring_relation": NeighboringRelation,
    "other_releases": lambda releases: freeze(history_from_list(releases)),
    "sampling": sampling_from_dict,
    "groups": lambda law: law and sampling_from_dict(law),
    "clipping": clipping_from_dict,
    "schedule": NoiseSchedule.from_dict,
    "metrics": lambda metrics: tuple(ScalarMetric(**metric) for metric in metrics),
    "correlation": Banded.from_dict,
    "secure_sum": lambda fields: SecureSum(**fields),
}


_ANOTHER_MACHINE = 1e-9  # relative: its functions of floating-point numbers may round otherwise


def plan_from_dict(written: Mapping[str, Any]) -> Plan:
    """Return the plan that `Plan.to_dict` described.

    Raises:
        ValueError: If the kind is unknown to this version, a field is out of range, or what
            follows from the fields is written otherwise.
        TypeError: If there is no such field.
    """
    given = dict(written)
    kind = known_kind(KINDS, given.pop("kind"), of="plan")
    slack = given.pop("slack", 0.0)  # follows from the rest
    plan = kind(**{name: _READ.get(name, _as_it_is)(value) for name, value in given.items()})
    if not math.isclose(slack, plan.slack, rel_tol=_ANOTHER_MACHINE):
        raise ValueError(f"its slack is {slack!r:.60}, and that of the plan is {plan.slack!r}")
    return plan


def _as_it_is(value: Any) -> Any:
    return value
