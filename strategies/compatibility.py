"""Checks that ledger, selection, options and model fit the plan, before any charge."""

from __future__ import annotations

from fl_dp.accounting import freeze
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.ledger import SpentLedger
from fl_dp.option_errors import OptionError, require_compatible, require_positive
from fl_dp.plan import Plan
from fl_dp.plan.exclusions import EXCLUSIONS, TrainingOptions
from fl_dp.updates import VectorLayout
from fl_dp.updates.compression_options import CompressionOptions

from .selection import LawSelection, Selection


def require_ledger_of(plan: Plan, ledger: SpentLedger) -> None:
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
        raise OptionError(
            "the ledger was opened with another plan than the strategy's", option="ledger"
        )


def require_loop_of(plan: Plan, *, buffers: bool) -> None:
    """Check that a strategy makes releases as the plan says.

    Raises:
        ValueError: If only one of them is for buffers.
    """
    if isinstance(plan.sampling, BufferedSampling) and not buffers:
        raise OptionError(
            "the plan releases buffers of the next answers: use DPFedBuff, not DPFedAvg",
            option="plan",
        )
    if buffers and not isinstance(plan.sampling, BufferedSampling):
        raise OptionError(
            f"DPFedBuff releases buffers, and the plan has {plan.sampling}: make the plan with "
            "sampling=BufferedSampling(...), or use DPFedAvg",
            option="plan",
        )


def require_selection_of(plan: Plan, selection: Selection) -> None:
    """Check that a selection draws cohorts as the plan charges for.

    Raises:
        ValueError: If the plan charges for another law, or lacks the selection's own releases.
    """
    if selection.sampling != plan.sampling:
        raise OptionError(
            f"the selection draws by {selection.sampling} and the plan charges for "
            f"{plan.sampling}: make the plan with sampling=selection.sampling",
            option="selection",
        )
    planned = dict(plan.other_releases)
    for event, count in freeze(selection.releases(plan.rounds)):
        if planned.get(event, 0) < count:
            raise OptionError(
                f"the selection releases {count} times {event}, which the plan does not declare: "
                "make the plan with other_releases=selection.releases(rounds)",
                option="selection",
            )


def require_trainable(plan: Plan, layout: VectorLayout, units: int) -> None:
    """Check that a model can be clipped as planned, and `units` updates summed exactly.

    Raises:
        ValueError: If not.
    """
    norms, arrays = len(plan.release.clipping.first_norms), len(layout.released)
    if norms not in (1, arrays):
        raise OptionError(
            f"the plan clips {norms} layers and the model has {arrays} trained arrays: "
            "give one clipping norm for each, or one for the whole update",
            option="clipping",
        )
    most = plan.bundle(plan.noise_multiplier).max_units
    if units > most:
        raise OptionError(
            f"{units} units are connected and at most {most} can be summed exactly at noise "
            f"multiplier {plan.noise_multiplier:.4g}",
            option="noise_multiplier",
        )
    if plan.noise is not None:  # the model may be larger than was accounted
        plan.noise.shared_bundle(plan.bundle(plan.noise_multiplier), layout.size)


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
