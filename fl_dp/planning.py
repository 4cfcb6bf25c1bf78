"""From settings to a privacy plan."""

from __future__ import annotations

from fl_dp.accounting import NeighboringRelation, PrivacyBudget, PrivacyPlan, default_delta

from .settings import Settings


def make_plan(settings: Settings, *, within_budget: bool = True) -> PrivacyPlan:
    """Return the privacy plan of a run.

    Args:
        settings: What is to be done.
        within_budget: Refuse a noise multiplier that spends more than `privacy.epsilon`; otherwise
            the plan's budget is what it spends.

    Raises:
        ValueError: If the rounds do not fit the budget.
    """
    privacy = settings.privacy
    delta = target_delta(settings)
    relation = NeighboringRelation(privacy.neighboring_relation)
    plateau = settings.schedule.plateau_schedule
    if privacy.noise_multiplier is not None:
        if plateau is not None:
            raise ValueError(
                "schedule=plateau decides the noise itself: leave privacy.noise_multiplier out"
            )
        return PrivacyPlan.from_noise_multiplier(
            privacy.noise_multiplier,
            delta=delta,
            rounds=settings.rounds,
            sampling_rate=settings.selection.sampling_rate,
            clipping_norm=settings.clipping.norm,
            num_clients=settings.task.num_clients,
            max_epsilon=privacy.epsilon if within_budget else None,
            neighboring_relation=relation,
            schedule=settings.schedule.noise_schedule,
        )
    assert privacy.epsilon is not None  # the settings refuse both being null
    return PrivacyPlan.calibrate(
        PrivacyBudget(epsilon=privacy.epsilon, delta=delta),
        rounds=settings.rounds,
        sampling_rate=settings.selection.sampling_rate,
        clipping_norm=settings.clipping.norm,
        num_clients=settings.task.num_clients,
        neighboring_relation=relation,
        schedule=settings.schedule.noise_schedule,
        plateau=plateau,
    )


def target_delta(settings: Settings) -> float:
    """Return the delta that the settings ask for."""
    if settings.privacy.delta is not None:
        return settings.privacy.delta
    return default_delta(settings.task.num_clients)
