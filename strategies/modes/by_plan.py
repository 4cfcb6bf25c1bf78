"""The table from each kind of plan to the mode of its rounds.

A new kind of plan needs a line of the table, and a mode unless an existing one fits.
"""

from __future__ import annotations

from typing import Any

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

from .buffered_mode import BufferedMode
from .central_mode import CentralMode
from .client_noise_mode import ClientNoiseMode
from .planned import PlannedMode
from .secure_sum_mode import SecureSumMode

_MODES: dict[type[Plan], type[PlannedMode[Any]]] = {
    CentralPlan: CentralMode,
    CorrelatedPlan: CentralMode,
    GroupedPlan: CentralMode,
    BufferedPlan: BufferedMode,
    LocalPlan: ClientNoiseMode,
    DistributedPlan: SecureSumMode,
    DistributedRecordsPlan: SecureSumMode,
}


def mode_class_of(plan: Plan) -> type[PlannedMode[Any]]:
    """The mode of a plan's rounds."""
    return _MODES[type(plan)]
