"""Candidates of a choice of hyper-parameters: a run's settings with a few keys changed.

A candidate changes how clients train and how their updates are bounded and used, never the charge
of a round. So all have the same noise, and choice and training are charged as releases declared
beforehand.
"""

from __future__ import annotations

from dataclasses import replace

from fl_dp.app.cells import settings_with
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import ConfigError
from fl_dp.app.settings import Settings

TUNABLE = (
    *(key.name for key in all_keys().values() if key.tunable),
    "server_optimizer",
)
"""Keys that a candidate may change: a trial sees each of them, and no charge depends on them."""


def candidates_of(settings: Settings) -> tuple[Settings, ...]:
    """A run's settings with each candidate, in order.

    Raises:
        ConfigError: If a key can't be tuned, a value is wrong, or a part of the model stays local.
    """
    candidates = settings.tune.candidates or ()
    if candidates and (settings.model.shared or settings.model.lora_rank):
        raise ConfigError(
            "a trial clips and noises the whole model, and model.shared or model.lora_rank leaves "
            "a part of it out: leave them out of what tunes",
            option="model.shared",
        )
    return tuple(with_candidate(settings, candidate) for candidate in candidates)


def as_chosen(settings: Settings, candidate: str) -> Settings:
    """A run's settings after the choice.

    Raises:
        ConfigError: As `candidates_of`.
    """
    chosen = with_candidate(settings, candidate)
    return replace(chosen, tune=replace(chosen.tune, chosen=candidate))


def with_candidate(settings: Settings, candidate: str) -> Settings:
    """Settings with a candidate's overrides, as `client.learning_rate=0.5 clipping.norm=1`.

    Raises:
        ConfigError: As `candidates_of`.
    """
    for override in candidate.split():
        key, _, value = override.partition("=")
        require_tunable(key)
        settings = settings_with(settings, key, value)
    return settings


def require_tunable(key: str) -> None:
    """Check that a candidate may change a key.

    Raises:
        ConfigError: If not, with the keys that may be changed.
    """
    if key not in TUNABLE:
        raise ConfigError(
            f"{key} can't be chosen among candidates: it would change what is charged, or no trial "
            f"would see it; what can is {', '.join(TUNABLE)}",
            option=key,
        )
