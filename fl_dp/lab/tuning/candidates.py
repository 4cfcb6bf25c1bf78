"""Candidates of a choice of hyper-parameters: a run's settings with a few keys changed.

A candidate changes how clients train and how their updates are bounded and used. It never changes
what a round is charged as: then the noise of all candidates is the same, and the charge of choice
and training together is that of releases that were declared beforehand.
"""

from __future__ import annotations

from dataclasses import replace

from fl_dp.app.cells import moved
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import ConfigError
from fl_dp.app.settings import Settings
from fl_dp.lab.settings import tune_of, with_tune

TUNABLE = (
    *(key.name for key in all_keys().values() if key.tunable),
    "server_optimizer",
)
"""Keys that a candidate may change: a trial sees each of them, and no charge depends on them."""


def candidates_of(settings: Settings) -> tuple[Settings, ...]:
    """Return a run's settings with each of its candidates, in their order.

    Raises:
        ConfigError: If a candidate changes a key that can't be tuned, or to a wrong value, or parts
            of the model do not travel.
    """
    candidates = tune_of(settings).candidates or ()
    if candidates and (settings.model.shared or settings.model.lora_rank):
        raise ConfigError(
            "a trial clips and noises the whole model, and model.shared or model.lora_rank leaves "
            "a part of it out: leave them out of what tunes"
        )
    return tuple(with_candidate(settings, each) for each in candidates)


def as_chosen(settings: Settings, candidate: str) -> Settings:
    """Return the settings that a run is made with, once a candidate was chosen.

    Raises:
        ConfigError: As `candidates_of`.
    """
    chosen = with_candidate(settings, candidate)
    return with_tune(chosen, replace(tune_of(chosen), chosen=candidate))


def with_candidate(settings: Settings, candidate: str) -> Settings:
    """Return settings with one candidate's overrides.

    Args:
        settings: Of the run.
        candidate: For example `client.learning_rate=0.5 clipping.norm=1`.

    Raises:
        ConfigError: As `candidates_of`.
    """
    for override in candidate.split():
        key, _, value = override.partition("=")
        require_tunable(key)
        settings = moved(settings, key, value)
    return settings


def require_tunable(key: str) -> None:
    """Check that a candidate may change a key.

    Raises:
        ConfigError: If it may not, with those that it may.
    """
    if key not in TUNABLE:
        raise ConfigError(
            f"{key} can't be chosen among candidates: it would change what is charged, or no trial "
            f"would see it; what can is {', '.join(TUNABLE)}"
        )
