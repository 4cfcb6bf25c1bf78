"""From settings to a privacy plan."""

from __future__ import annotations

from fl_dp.accounting import PrivacyBudget, PrivacyPlan, default_delta

from .settings import Settings


def make_plan(settings: Settings) -> PrivacyPlan:
    """Return the privacy plan of a run.

    Raises:
        ValueError: If the rounds do not fit the budget.
    """
    privacy = settings.privacy
    delta = target_delta(settings)
    if privacy.noise_multiplier is not None:
        return PrivacyPlan.from_noise_multiplier(
            privacy.noise_multiplier,
            delta=delta,
            rounds=settings.rounds,
            sampling_rate=settings.selection.sampling_rate,
            clipping_norm=settings.clipping.norm,
            num_clients=settings.task.num_clients,
            max_epsilon=privacy.epsilon,
        )
    assert privacy.epsilon is not None  # the settings refuse both being null
    return PrivacyPlan.calibrate(
        PrivacyBudget(epsilon=privacy.epsilon, delta=delta),
        rounds=settings.rounds,
        sampling_rate=settings.selection.sampling_rate,
        clipping_norm=settings.clipping.norm,
        num_clients=settings.task.num_clients,
    )


def target_delta(settings: Settings) -> float:
    """Return the delta that the settings ask for."""
    if settings.privacy.delta is not None:
        return settings.privacy.delta
    return default_delta(settings.task.num_clients)
