"""Checks of a plan, a selection and strategy options against each other."""

from __future__ import annotations

from fl_dp.option_errors import require_compatible, require_positive
from fl_dp.plan import Plan
from fl_dp.plan.exclusions import EXCLUSIONS, TrainingOptions
from fl_dp.updates.compression_options import CompressionOptions

from .selection import LawSelection, Selection


def check_together(
    plan: Plan | None,
    selection: Selection,
    *,
    weight_cap: float | None,
    dp_sgd: bool,
    compression: CompressionOptions,
    roster_may_grow: bool = False,
) -> None:
    """Refuse options of a round that its plan, or clients' DP-SGD, does not allow.

    Raises:
        ValueError: With what to write instead.
    """
    if weight_cap is not None:
        require_positive(weight_cap=weight_cap)
    require_compatible(
        EXCLUSIONS,
        TrainingOptions(
            plan=plan,
            utility=selection.utility,
            charged_unit=selection.unit,
            looks_at_norms=selection.looks_at_norms,
            draws_cohorts=type(selection) is not LawSelection,
            weight_cap=weight_cap,
            dp_sgd=dp_sgd,
            compression=compression,
            roster_may_grow=roster_may_grow,
        ),
    )
