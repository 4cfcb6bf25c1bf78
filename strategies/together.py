"""Checks of a plan, a selection and the strategy's options against each other."""

from __future__ import annotations

from fl_dp.accounting import CyclicSampling, IncompatibleOptions
from fl_dp.mechanisms.checks import require_positive
from fl_dp.plan import Hosting, PrivacyPlan, RecordPlan
from fl_dp.updates import Compression

from .selection import PoissonSelection, Selection


def check_together(
    plan: PrivacyPlan | None,
    selection: Selection,
    *,
    weight_cap: float | None,
    record_plan: RecordPlan | None,
    compression: Compression,
    roster_may_grow: bool = False,
) -> None:
    """Refuse options of a round that its plan, or DP-SGD at the clients, does not allow.

    Args:
        plan: What is promised to clients; None: nothing.
        selection: Who takes part.
        weight_cap: Records that earn a client the full weight; None: every client weighs 1.
        record_plan: What clients promise to their records; None: nothing.
        compression: How updates and models travel.
        roster_may_grow: Whether more clients may take part than are declared.

    Raises:
        ValueError: With what to write instead.
    """
    if weight_cap is not None:
        require_positive(weight_cap=weight_cap)
    hosting = Hosting() if plan is None else plan.hosting
    hosting.check_compression(compression.up)
    if selection.looks_at_norms:
        hosting.check_norms_are_told()
    if hosting.of_records and record_plan is not None:
        raise ValueError(
            "where units are records a sum is a step of DP-SGD already, and clients take none of "
            "their own: leave record_plan out"
        )
    if hosting.coins_at_nodes and type(selection) is not PoissonSelection:
        raise ValueError(
            "nodes that flip the coins themselves ask no selection: use PoissonSelection "
            f"itself, not {type(selection).__name__}"
        )
    metrics = False
    if plan is not None:
        plan.noise.check_reports(selection.utility, weighted=weight_cap is not None)
        plan.noise.check_compression(compression.up)
        plan.noise.check_roster(may_grow=roster_may_grow)
        if roster_may_grow and isinstance(plan.sampling, CyclicSampling):
            raise IncompatibleOptions(
                "groups that take turns are dealt out of the declared clients: leave "
                "roster_may_grow=True out, and declare as many as may ever come"
            )
        metrics = bool(plan.release.metrics)
        if selection.unit == "record" and plan.unit == "client":
            raise ValueError(
                "the selection is charged for records and the plan promises something to clients: "
                "make the plan with unit='record' and replace-one neighbours"
            )
        if plan.release.capped_denominator and weight_cap is None:
            raise ValueError("a capped denominator divides by weights: give weight_cap")
    reports = weight_cap is not None or selection.utility is not None or metrics
    if record_plan is not None and reports:
        raise ValueError(
            "clients that protect their records by DP-SGD report nothing else about them: "
            "give no weight_cap, no metrics, and a selection that asks clients for no utility"
        )
