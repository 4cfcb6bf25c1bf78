"""Compatibility of a plan with the strategy's options, refused before anything is spent."""

from __future__ import annotations

import math

from fl_dp.accounting import freeze
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import ScalarMetric
from fl_dp.plan import PrivacyPlan, RecordPlan
from fl_dp.updates import Compression, VectorLayout

from .selection import PoissonSelection, Selection, selection_of


def require_ledger_of(plan: PrivacyPlan, ledger: PrivacyLedger) -> None:
    """Check that a plan is charged to its own ledger.

    Raises:
        TypeError: If either is missing.
        ValueError: If the ledger was opened with another plan.
    """
    if plan is None or ledger is None:
        raise TypeError(
            "DPFedAvg needs a plan and its ledger; to train without privacy, use UnprotectedFedAvg"
        )
    if ledger.plan != plan:
        raise ValueError("the ledger was opened with another plan than the strategy's")


def selection_for(plan: PrivacyPlan, selection: Selection | None) -> Selection:
    """Return who draws the plan's cohorts.

    Raises:
        ValueError: If the plan charges for another law than the selection's, or does not declare
            what the selection releases itself.
    """
    if selection is None:
        selection = selection_of(plan.sampling)
    if selection.sampling != plan.sampling:
        raise ValueError(
            f"the selection draws by {selection.sampling} and the plan charges for "
            f"{plan.sampling}: make the plan with sampling=selection.sampling"
        )
    planned = dict(plan.other_releases)
    for event, count in freeze(selection.releases(plan.rounds)):
        if planned.get(event, 0) < count:
            raise ValueError(
                f"the selection releases {count} times {event}, which the plan does not declare: "
                "make the plan with other_releases=selection.releases(rounds)"
            )
    return selection


def require_compatible(
    plan: PrivacyPlan,
    selection: Selection,
    *,
    weight_cap: float | None,
    compression: Compression | None,
) -> None:
    """Check that each option does something under the plan, and nothing that it forbids.

    Raises:
        ValueError: If not.
    """
    if plan.client_scheme is not None and selection.utility:
        raise ValueError(
            f"clients that trust nobody do not report their {selection.utility} in the "
            "clear: with noise at the clients, choose by public scores (PublicSelection)"
        )
    if plan.sums_at_nodes and selection.looks_at_norms:
        raise ValueError(
            "a node that sums its units does not tell the norm of each: choose by another "
            "utility than update_norm, for instance loss"
        )
    if plan.coins_at_nodes and type(selection) is not PoissonSelection:
        raise ValueError(
            "nodes that flip the coins themselves ask no selection: use PoissonSelection "
            f"itself, not {type(selection).__name__}"
        )
    if plan.sums_at_nodes and compression is not None and compression.up != "none":
        raise ValueError(
            "a node that sums its units answers in exact grid steps, without noise: "
            f"compression=Compression(up='{compression.up}') would round them, so leave "
            "compression out, or have one unit a node and coins at the server"
        )
    if selection.unit == "record" and plan.unit == "client":
        raise ValueError(
            "the selection is charged for records and the plan promises something to clients: "
            "make the plan with unit='record' and replace-one neighbours"
        )
    if plan.capped_denominator and weight_cap is None:
        raise ValueError("a capped denominator divides by weights: give weight_cap")


def require_weight_cap(weight_cap: float | None) -> None:
    """Check the cap on weights.

    Raises:
        ValueError: If it is not positive and finite.
    """
    if weight_cap is not None and not (math.isfinite(weight_cap) and weight_cap > 0.0):
        raise ValueError(f"weight_cap must be positive and finite, got {weight_cap}")


def require_models_alone(
    record_plan: RecordPlan | None,
    selection: Selection,
    *,
    weight_cap: float | None,
    metrics: tuple[ScalarMetric, ...] = (),
) -> None:
    """Check that nothing but the models is computed from records that DP-SGD protects.

    Raises:
        ValueError: If something is.
    """
    if record_plan is None:
        return
    if weight_cap is not None or selection.utility is not None or metrics:
        raise ValueError(
            "clients that protect their records by DP-SGD report nothing else about them: "
            "give no weight_cap, no metrics, and a selection that asks clients for no utility"
        )


def require_trainable(plan: PrivacyPlan, layout: VectorLayout, units: int) -> None:
    """Check that a model can be clipped as planned, and so many updates be summed exactly.

    Raises:
        ValueError: If not.
    """
    norms, arrays = len(plan.clipping.first_norms), len(layout.released)
    if norms not in (1, arrays):
        raise ValueError(
            f"the plan clips {norms} layers and the model has {arrays} floating-point arrays: "
            "give one clipping norm for each, or one for the whole update"
        )
    most = plan.bundle(plan.least_noise_multiplier).max_units
    if units > most:
        raise ValueError(
            f"{units} units are connected and at most {most} can be summed exactly at noise "
            f"multiplier {plan.least_noise_multiplier:.4g}"
        )
