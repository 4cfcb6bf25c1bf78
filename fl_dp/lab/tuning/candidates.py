"""Candidates of a choice of hyper-parameters: a run's settings with a few keys changed.

A candidate changes how clients train and how their updates are bounded and used, never the charge
of a round. So all have the same noise, and choice and training are charged as releases declared
beforehand.
"""

from __future__ import annotations

from dataclasses import replace

from fl_dp.app.cells import moved
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import ConfigError
from fl_dp.app.settings import Settings
from fl_dp.lab.settings import tune_of, with_tune
from fl_dp.option_errors import Exclusion, require_compatible
from fl_dp.statistics import NoiseChoice, Vote, choose_noise

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
    candidates = tune_of(settings).candidates or ()
    if candidates and (settings.model.shared or settings.model.lora_rank):
        raise ConfigError(
            "a trial clips and noises the whole model, and model.shared or model.lora_rank leaves "
            "a part of it out: leave them out of what tunes"
        )
    return tuple(with_candidate(settings, candidate) for candidate in candidates)


def as_chosen(settings: Settings, candidate: str) -> Settings:
    """A run's settings after the choice.

    Raises:
        ConfigError: As `candidates_of`.
    """
    chosen = with_candidate(settings, candidate)
    return with_tune(chosen, replace(tune_of(chosen), chosen=candidate))


def with_candidate(settings: Settings, candidate: str) -> Settings:
    """Settings with a candidate's overrides, as `client.learning_rate=0.5 clipping.norm=1`.

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
        ConfigError: If not, with the keys that may be changed.
    """
    if key not in TUNABLE:
        raise ConfigError(
            f"{key} can't be chosen among candidates: it would change what is charged, or no trial "
            f"would see it; what can is {', '.join(TUNABLE)}"
        )


def vote_of(settings: Settings) -> NoiseChoice | None:
    """The clients' vote, None without one.

    Privacy: the draw costs `tune.share * privacy.epsilon` of bounded range, for any number of
    candidates; see `Vote`.

    Raises:
        IncompatibleOptions: As `require_choosable`.
    """
    tune = tune_of(settings)
    if tune.candidates is None:
        return None
    require_choosable(settings)
    if tune.by != "vote":
        return None
    assert settings.privacy.epsilon is not None  # as was checked
    query = Vote(candidates=len(tune.candidates))
    return choose_noise(query, tune.share * settings.privacy.epsilon, 0.0)


def require_choosable(settings: Settings) -> None:
    """Check that the settings allow a paid choice, before anything is spent.

    Raises:
        IncompatibleOptions: If not, with what to write instead.
    """
    require_compatible(CHOOSING, settings)


CHOOSING: tuple[Exclusion[Settings], ...] = (
    Exclusion(
        options=("privacy", "dp_sgd", "tune.candidates"),
        when=lambda settings: settings.privacy.noised_by != "server" or settings.protects_records,
        why="`fl-dp tune` charges what it chooses to clients, by a promise that the server keeps",
        instead="write privacy=central without dp_sgd=on, or tune on public data and write the "
        "settings that won",
    ),
    Exclusion(
        options=("privacy.noise_multiplier", "privacy.epsilon", "tune.share"),
        when=lambda settings: (
            settings.privacy.noise_multiplier is not None or settings.privacy.epsilon is None
        ),
        why="tune.share is a part of privacy.epsilon",
        instead="leave privacy.noise_multiplier out, and write privacy.epsilon",
    ),
    Exclusion(
        options=("selection.participation_cap", "tune.by"),
        when=lambda settings: (
            tune_of(settings).by == "stopping" and settings.selection.participation_cap is not None
        ),
        why="tune.by=stopping charges whole trainings as one, and a participation cap charges "
        "clients",
        instead="leave selection.participation_cap out",
    ),
    Exclusion(
        options=("tracking", "tracking.metrics_port", "tune.by"),
        when=lambda settings: tune_of(settings).by == "stopping" and settings.tracking.is_on,
        why="with tune.by=stopping what lost and how many trainings there were stays secret, and "
        "a tracker would be told of each",
        instead="leave tracking and tracking.metrics_port out",
    ),
)
"""Options that exclude a choice among candidates."""
