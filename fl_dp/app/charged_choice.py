"""A choice of hyper-parameters: what a vote of the clients costs, and what excludes a choice."""

from __future__ import annotations

from fl_dp.option_errors import Exclusion, require_compatible
from fl_dp.statistics import NoiseChoice, Vote, choose_noise

from .settings import Settings


def vote_of(settings: Settings) -> NoiseChoice | None:
    """The clients' vote, None without one.

    Privacy: the draw costs `tune.share * privacy.epsilon` of bounded range, for any number of
    candidates; see `Vote`.

    Raises:
        IncompatibleOptions: As `require_choosable`.
    """
    tune = settings.tune
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
            settings.privacy.get("noise_multiplier") is not None
            or settings.privacy.get("epsilon") is None
        ),
        why="tune.share is a part of privacy.epsilon",
        instead="leave privacy.noise_multiplier out, and write privacy.epsilon",
    ),
    Exclusion(
        options=("selection.participation_cap", "tune.by"),
        when=lambda settings: (
            settings.tune.by == "stopping"
            and settings.selection.get("participation_cap") is not None
        ),
        why="tune.by=stopping charges whole trainings as one, and a participation cap charges "
        "clients",
        instead="leave selection.participation_cap out",
    ),
    Exclusion(
        options=("tracking", "tracking.metrics_port", "tune.by"),
        when=lambda settings: settings.tune.by == "stopping" and settings.tracking.is_on,
        why="with tune.by=stopping what lost and how many trainings there were stays secret, and "
        "a tracker would be told of each",
        instead="leave tracking and tracking.metrics_port out",
    ),
)
"""Options that exclude a choice among candidates."""
