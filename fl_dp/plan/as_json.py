"""Plans read from plain JSON values: `kind` names the class of the other fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl_dp.codec import decode, known_kind

from .buffered import BufferedPlan
from .central import CentralPlan
from .correlated import CorrelatedPlan
from .distributed import DistributedPlan
from .distributed_records import DistributedRecordsPlan
from .grouped import GroupedPlan
from .local import LocalPlan
from .plan_base import Plan

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
"""Every kind of plan, by its name in JSON."""

_ANOTHER_MACHINE = 1e-9  # relative: its functions of floating-point numbers may round otherwise


def plan_from_dict(document: Mapping[str, Any]) -> Plan:
    """Return the plan that `Plan.to_dict` described.

    Raises:
        ValueError: The kind or a field is unknown to this version, a field is out of range, or the
            slack does not follow from the fields.
    """
    values = dict(document)
    slack = values.pop("slack", 0.0)  # follows from the rest
    plan: Plan = decode(known_kind(KINDS, values.get("kind"), of="plan"), values, "plan")
    if not math.isclose(slack, plan.slack, rel_tol=_ANOTHER_MACHINE):
        raise ValueError(f"its slack is {slack!r:.60}, and that of the plan is {plan.slack!r}")
    return plan
