"""From settings to selection, clipping and privacy plan."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    OwnRatesSampling,
    PrivacyBudget,
    PrivacyEvent,
    default_delta,
    freeze,
)
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import Clipping, ScalarMetric
from fl_dp.option_errors import OptionError
from fl_dp.plan import Banded, Plan, RecordPlan
from fl_dp.strategies import LawSelection, Selection, check_together
from fl_dp.updates import VectorLayout

from .charged_choice import vote_of
from .settings import Settings
from .settings.correlation import banded, rounds_apart
from .settings.dp_sgd import record_plan
from .settings.promises import budget, record_roster


def make_plan(settings: Settings, *, within_budget: bool = True) -> Plan:
    """A run's privacy plan.

    With `within_budget`, a noise multiplier that spends more than `privacy.epsilon` is refused;
    otherwise the plan's budget is what it spends.

    Raises:
        ValueError: The rounds do not fit the budget, or settings exclude each other.
    """
    privacy, plan = settings.promise, _uncalibrated(settings)
    multiplier = privacy.of_plan().get("noise_multiplier")
    if multiplier is None:
        return plan.calibrated()
    plan = replace(plan, noise_multiplier=multiplier)
    if within_budget and privacy.epsilon:
        return plan.require_fits()
    return plan.with_spent_budget()


def budget_asked_for(settings: Settings) -> Guarantee | None:
    """A run's budget, before its noise is computed; None where nothing is promised.

    It has no number where the noise is given, and the budget follows from it.

    Raises:
        ValueError: Settings exclude each other.
    """
    if settings.protects_clients:
        guarantee = Guarantee.of(_uncalibrated(settings))
        return replace(guarantee, budget=settings.promise.epsilon)
    if settings.protects_records:
        chosen = settings.record_training
        return Guarantee(
            budget=chosen.epsilon,
            delta=chosen.delta,
            unit=settings.task.unit_of_records,
            neighbours=settings.privacy.neighboring_relation,
            against=RecordPlan.against,
        )
    return None


def _uncalibrated(settings: Settings) -> Plan:
    privacy, selection = settings.promise, make_selection(settings)
    others = [
        *freeze(selection.releases(settings.rounds)),
        *_before_training(settings),
        *_after_training(settings, target_delta(settings)),
    ]
    own = privacy.of_plan()
    own.pop("noise_multiplier", None)
    kind: Any = privacy.kind
    with privacy.named_as_keys(kind):
        plan: Plan = kind(
            budget=_budget(settings),
            rounds=settings.rounds,
            sampling=selection.sampling,
            other_releases=freeze(others),
            **_roster(settings),
            **own,
            **_of_other_groups(settings),
        )
    # The strategy checks this again when it is made; here it precedes the costly calibration.
    _check_together(settings, plan, selection)
    return plan


def make_record_plan(settings: Settings, *, within_budget: bool = True) -> RecordPlan | None:
    """Plan of DP-SGD inside clients; None without DP-SGD.

    `within_budget` is as in `make_plan`, for what a client's planned rounds spend.

    Raises:
        ValueError: The rounds do not fit the budget, or settings exclude each other.
    """
    if not settings.protects_records:
        return None
    chosen = settings.record_training
    relation = NeighboringRelation(settings.privacy.neighboring_relation)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE and chosen.expected_batch_size is None:
        raise OptionError(
            "privacy.neighboring_relation=add-or-remove-one hides how many records a client has: "
            "give dp_sgd.expected_batch_size, a public constant, for example "
            "dp_sgd.sampling_rate times a typical client's records",
            option="dp_sgd.expected_batch_size",
        )
    if not settings.protects_clients:
        _check_together(settings, None, make_selection(settings))
    plan: RecordPlan = chosen.make_by(
        record_plan,
        epochs=settings.client.epochs,
        usual_participations=_usual_participations(settings),
        neighboring_relation=relation,
        within_budget=within_budget,
        unit=settings.task.unit_of_records,
    )
    return plan


def make_selection(settings: Settings, plan: Plan | None = None) -> Selection:
    """A run's selection; the plan has the rates of groups with own budgets.

    Raises:
        ValueError: Settings exclude each other.
    """
    if plan is not None and isinstance(plan.sampling, OwnRatesSampling):
        return LawSelection(plan.sampling)
    apart = _rounds_apart(settings)
    selection: Selection = settings.selection.make(num_clients=settings.task.num_clients, **apart)
    return selection


def make_clipping(settings: Settings) -> Clipping:
    """Clipping of a run's updates."""
    rule: Clipping = settings.clipping.make(num_arrays=partial(_num_layers, settings))
    return rule


def check_layers(settings: Settings) -> None:
    """Check that `clipping.norms` has one norm for each of the model's floating-point arrays.

    Raises:
        ValueError: It has more or fewer.
    """
    norms = settings.clipping.get("norms")
    if norms is not None and len(norms) != (arrays := _num_layers(settings)):
        raise OptionError(
            f"clipping.norms has {len(norms)} norms and model={settings.model.name} has "
            f"{arrays} floating-point arrays: write {arrays} norms, or leave it out"
        )


def target_delta(settings: Settings) -> float:
    """The delta that the settings ask for."""
    if settings.protects_clients:
        return _budget(settings).delta
    return default_delta(settings.task.num_clients)


def _budget(settings: Settings) -> PrivacyBudget:
    def num_units() -> int:
        return declared_records(settings) if settings.sums_records else settings.task.num_clients

    made: PrivacyBudget = settings.privacy.make_by(budget, num_units=num_units)
    return made


def _check_together(settings: Settings, plan: Plan | None, selection: Selection) -> None:
    check_together(
        plan,
        selection,
        weight_cap=settings.weight_cap,
        dp_sgd=settings.protects_records,
        compression=settings.compression,
        roster_may_grow=settings.roster_may_grow,
    )


def _of_other_groups(settings: Settings) -> dict[str, Any]:
    """Fields of some kinds only; settings refused keys that the chosen kind lacks."""
    schedule = settings.schedule.make()
    fields: dict[str, Any] = {
        "clipping": make_clipping(settings),
        "metrics": _metrics(settings) or None,
        "scalar_noise_std": settings.metrics.scalar_noise_std,
        "total_weight": settings.total_weight,
        "coins_at_nodes": settings.selection.get("coins_at_nodes") or None,
        "schedule": None if schedule == NoiseSchedule() else schedule,
        "correlation": _correlation(settings),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rounds_apart(settings: Settings) -> dict[str, int]:
    """What keeps a client's rounds apart; empty: nothing does."""
    if not settings.privacy.has(rounds_apart):
        return {}
    apart: dict[str, int] = settings.privacy.make_by(
        rounds_apart,
        selection=settings.selection,
        rounds=settings.rounds,
        num_clients=settings.task.num_clients,
    )
    return apart


def _correlation(settings: Settings) -> Banded | None:
    """The noise's correlation; None: it has none."""
    if not settings.privacy.has(banded):
        return None
    (apart,) = _rounds_apart(settings).values()
    made: Banded = settings.privacy.make_by(
        banded,
        rounds=settings.rounds,
        apart=apart,
        momentum=settings.server_optimizer.get("momentum") or 0.0,
        num_parameters=partial(_num_parameters, settings),
    )
    return made


def _before_training(settings: Settings) -> list[tuple[PrivacyEvent, int]]:
    """Releases before the first round: a vote of the clients on hyper-parameters."""
    vote = vote_of(settings)
    return [] if vote is None else [(event, 1) for event in vote.events]


def _after_training(settings: Settings, delta: float) -> list[tuple[PrivacyEvent, int]]:
    if settings.metrics.private_epsilon is None:
        return []
    from .private_metrics import private_metrics  # only here does a plan have to know the data

    choice = private_metrics(settings, delta)
    if choice is None:
        return []
    return [(event, 1) for event in choice.events]


def declared_records(settings: Settings) -> int:
    """Number of declared records, where records are the units of secure sums.

    Raises:
        ValueError: No setting declares it, and the server has no training part to count.
    """
    declared: int | None = settings.privacy.get("num_records")
    return _count_records(settings) if declared is None else declared


def _count_records(settings: Settings) -> int:
    if settings.task.partition == "nodes":
        raise OptionError(
            "nobody says how many records the nodes have: declare about as many as all have "
            "together, privacy.num_records=..., which is public",
            option="privacy.num_records",
        )
    from .workload import count_units  # only here does a plan have to know the data

    return count_units(settings)


def _roster(settings: Settings) -> dict[str, Any]:
    """Declared units and their number, and their distribution on nodes."""
    roster: dict[str, Any] = {"num_clients": settings.task.num_clients}
    if settings.sums_records:
        count = partial(_count_records, settings)
        roster |= settings.privacy.make_by(record_roster, **roster, count=count)
        return roster | {"unit": settings.task.unit_of_records}
    if settings.simulation.units_at_node > 1:
        roster["units_per_node"] = settings.simulation.units_at_node
    return roster


def _usual_participations(settings: Settings) -> int:
    """Rounds that almost no client exceeds: mean + 3 standard deviations."""
    rate, rounds = settings.selection.sampling_rate, settings.rounds
    # Of a binomial count. A client's own ledger stops it there, so no promise rests on this.
    usual = rate * rounds + 3.0 * math.sqrt(rate * (1.0 - rate) * rounds)
    return max(1, min(rounds, math.ceil(usual)))


def _metrics(settings: Settings) -> tuple[ScalarMetric, ...]:
    ranges = {"loss": settings.metrics.loss, "accuracy": settings.metrics.accuracy}
    metrics = []
    for name, bounds in ranges.items():
        if bounds is not None:
            metrics.append(ScalarMetric(name=name, low=bounds[0], high=bounds[1]))
    return tuple(metrics)


def _num_layers(settings: Settings) -> int:
    return len(_layout(settings).released)


def _num_parameters(settings: Settings) -> int:
    return _layout(settings).size


def _layout(settings: Settings) -> VectorLayout:
    # Only here does a plan have to know the model, and with it torch.
    from .workload import initial_arrays_of

    return VectorLayout.of(initial_arrays_of(settings))
