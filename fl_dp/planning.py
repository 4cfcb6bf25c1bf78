"""From settings to who takes part, what clips, and a privacy plan."""

from __future__ import annotations

from fl_dp.accounting import (
    NeighboringRelation,
    PlanOptions,
    PrivacyBudget,
    PrivacyPlan,
    default_delta,
)
from fl_dp.mechanisms import (
    AdaptiveClipping,
    Clipping,
    FixedClipping,
    PerLayerClipping,
    ScalarMetric,
)
from fl_dp.strategies import (
    DPUtilitySelection,
    ExponentialSelection,
    FixedSelection,
    PoissonSelection,
    PublicSelection,
    Selection,
    TruncatedPoissonSelection,
)
from fl_dp.updates import VectorLayout

from .settings import Settings


def make_plan(settings: Settings, *, within_budget: bool = True) -> PrivacyPlan:
    """Return the privacy plan of a run.

    Args:
        settings: What is to be done.
        within_budget: Refuse a noise multiplier that spends more than `privacy.epsilon`; otherwise
            the plan's budget is what it spends.

    Raises:
        ValueError: If the rounds do not fit the budget, or settings exclude each other.
    """
    privacy = settings.privacy
    if privacy.mode == "none":
        raise ValueError("privacy=none promises nothing: there is no plan to make")
    _require_exact_sums(settings)
    delta = target_delta(settings)
    selection = make_selection(settings)
    options = PlanOptions(
        neighboring_relation=NeighboringRelation(privacy.neighboring_relation),
        schedule=settings.schedule.noise_schedule,
        plateau=settings.schedule.plateau_schedule,
        participation_cap=settings.selection.participation_cap,
        other_releases=selection.releases(settings.rounds),
        metrics=_metrics(settings),
        scalar_noise_std=settings.metrics.noise_std,
        total_weight=settings.weights.total,
        capped_denominator=settings.weights.capped_denominator,
        client_scheme=privacy.scheme if privacy.mode == "local" else None,
        unit=privacy.unit,
        units_per_node=settings.simulation.units_per_node,
        coins_at_nodes=settings.selection.coins == "nodes",
    )
    if privacy.noise_multiplier is not None:
        if settings.schedule.name == "plateau":
            raise ValueError(
                "schedule=plateau decides the noise itself: leave privacy.noise_multiplier out"
            )
        return PrivacyPlan.from_noise_multiplier(
            privacy.noise_multiplier,
            delta=delta,
            rounds=settings.rounds,
            num_clients=settings.task.num_clients,
            sampling=selection.sampling,
            clipping=make_clipping(settings),
            max_epsilon=privacy.epsilon if within_budget else None,
            **options,
        )
    assert privacy.epsilon is not None  # the settings refuse both being null
    return PrivacyPlan.calibrate(
        PrivacyBudget(epsilon=privacy.epsilon, delta=delta),
        rounds=settings.rounds,
        num_clients=settings.task.num_clients,
        sampling=selection.sampling,
        clipping=make_clipping(settings),
        **options,
    )


def make_selection(settings: Settings) -> Selection:
    """Return who takes part.

    Raises:
        ValueError: If settings exclude each other.
    """
    chosen, num_clients = settings.selection, settings.task.num_clients
    cohort = max(1, round(chosen.sampling_rate * num_clients))
    match chosen.name:
        case "poisson":
            return PoissonSelection(chosen.sampling_rate)
        case "truncated_poisson" if chosen.max_cohort is None:
            return TruncatedPoissonSelection.comfortable(chosen.sampling_rate, num_clients)
        case "truncated_poisson":
            return TruncatedPoissonSelection(chosen.sampling_rate, chosen.max_cohort or 0)
        case "fixed":
            return FixedSelection(cohort)
        case "exponential":
            return ExponentialSelection(
                cohort,
                epsilon=chosen.epsilon,
                utility=chosen.utility,
                utility_range=(0.0, chosen.utility_high),
                records_per_client=_records_per_client(settings),
            )
        case "dp_utility":
            return DPUtilitySelection(
                chosen.sampling_rate * num_clients,
                largest_rate=chosen.largest_rate or min(1.0, 2.0 * chosen.sampling_rate),
                noise_multiplier=chosen.utility_noise,
                refresh_every=chosen.refresh_every,
                smallest_rate=chosen.smallest_rate,
                utility=chosen.utility,
                utility_range=(0.0, chosen.utility_high),
                sharpness=chosen.sharpness,
            )
        case _:
            return PublicSelection(cohort)


def make_clipping(settings: Settings) -> Clipping:
    """Return what bounds an update."""
    clipping = settings.clipping
    match clipping.name:
        case "adaptive":
            return AdaptiveClipping(
                initial_norm=clipping.norm,
                target_quantile=clipping.target_quantile,
                learning_rate=clipping.learning_rate,
            )
        case "per_layer" if clipping.norms is not None:
            return PerLayerClipping(norms=tuple(clipping.norms))
        case "per_layer":
            return PerLayerClipping.evenly(clipping.norm, _num_layers(settings))
        case _:
            return FixedClipping(norm=clipping.norm)


def target_delta(settings: Settings) -> float:
    """Return the delta that the settings ask for."""
    if settings.privacy.delta is not None:
        return settings.privacy.delta
    return default_delta(settings.task.num_clients)


def _require_exact_sums(settings: Settings) -> None:
    sums = settings.simulation.units_per_node > 1 or settings.selection.coins == "nodes"
    if sums and settings.compression.up != "none":
        raise ValueError(
            f"compression.up={settings.compression.up} would round the exact sum of a node that "
            "sums its units: write compression.up=none, or simulation.units_per_node=1 and "
            "selection.coins=server"
        )


def _metrics(settings: Settings) -> tuple[ScalarMetric, ...]:
    ranges = {"loss": settings.metrics.loss, "accuracy": settings.metrics.accuracy}
    return tuple(
        ScalarMetric(name=name, low=bounds[0], high=bounds[1])
        for name, bounds in ranges.items()
        if bounds is not None
    )


def _records_per_client(settings: Settings) -> int | None:
    least = settings.selection.records_per_client
    if (least is None) != (settings.privacy.unit == "client"):
        raise ValueError(
            "selection.records_per_client goes with privacy.unit=example, for which it is needed: "
            f"got {least} with privacy.unit={settings.privacy.unit}"
        )
    chosen = settings.selection
    if least is not None and chosen.utility not in ("loss", "accuracy"):
        raise ValueError(
            f"one record can move {chosen.utility} by any amount: with privacy.unit=example choose "
            "by selection.utility=loss or accuracy"
        )
    if least is not None and chosen.utility == "accuracy" and chosen.utility_high < 1.0:
        raise ValueError(
            "one record moves an accuracy by one over the records: write selection.utility_high=1, "
            f"got {chosen.utility_high}"
        )
    return least


def _num_layers(settings: Settings) -> int:
    # Only here does a plan have to know the model, and with it torch.
    from .workload import initial_arrays_of

    return len(VectorLayout.of(initial_arrays_of(settings)).released)
