"""Price of a choice among candidates, for the plan: what is refused, and the event of a vote."""

from __future__ import annotations

from fl_dp.app.settings import Settings
from fl_dp.lab.settings import tune_of
from fl_dp.option_errors import Exclusion, require_compatible
from fl_dp.statistics import NoiseChoice, Vote, choose_noise


def vote_of(settings: Settings) -> NoiseChoice | None:
    """Return the vote that a run's clients cast, None if they cast none.

    Privacy: the draw costs `tune.share * privacy.epsilon` of bounded range, however many candidates
    there are; see `Vote`.

    Raises:
        IncompatibleOptions: If the settings allow no choice, with what to write instead.
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
    """Check that somebody can be paid for a choice, before anything is spent.

    Raises:
        IncompatibleOptions: If not, with what to write instead.
    """
    require_compatible(CHOOSING, settings)


def _idle(key: str) -> Exclusion[Settings]:
    return Exclusion(
        options=(f"tune.{key}", "tune.by"),
        when=lambda given: key in tune_of(given).unused,
        why=f"{{tune.{key}}} has no part in {{tune.by=?}}",
        instead="leave it out",
    )


CHOOSING: tuple[Exclusion[Settings], ...] = (
    *(_idle(key) for key in ("share", "rounds", "mean_runs", "shape")),
    Exclusion(
        options=("privacy", "tune.candidates"),
        when=lambda given: given.privacy.noised_by != "server",
        why="`fl-dp tune` chooses for a promise to clients that the server keeps",
        instead="write {privacy=central}, or tune on public data and write the settings that won",
    ),
    Exclusion(
        options=("dp_sgd", "tune.candidates"),
        when=lambda given: given.protects_records,
        why="what is chosen by clients' data is charged to clients",
        instead="leave {dp_sgd=on} out",
    ),
    Exclusion(
        options=("privacy.noise_multiplier", "privacy.epsilon", "tune.share"),
        when=lambda given: (
            given.privacy.noise_multiplier is not None or given.privacy.epsilon is None
        ),
        why="{tune.share} is a part of {privacy.epsilon}",
        instead="leave {privacy.noise_multiplier} out, and write {privacy.epsilon}",
    ),
    Exclusion(
        options=("selection.coins", "tune.by"),
        when=lambda given: tune_of(given).by == "vote" and given.selection.coins == "nodes",
        why="a vote asks all clients, and {selection.coins=nodes} samples them",
        instead="leave it out",
    ),
    Exclusion(
        options=("schedule", "tune.by"),
        when=lambda given: tune_of(given).by == "stopping" and given.schedule.name == "plateau",
        why="noise that reacts to a plateau is not known before the trainings",
        instead="with {tune.by=stopping} write another {schedule}",
    ),
    Exclusion(
        options=("selection.participation_cap", "tune.by"),
        when=lambda given: (
            tune_of(given).by == "stopping" and given.selection.participation_cap is not None
        ),
        why="{tune.by=stopping} charges whole trainings as one, and a participation cap charges "
        "clients",
        instead="leave {selection.participation_cap} out",
    ),
    Exclusion(
        options=("tracking", "tracking.metrics_port", "tune.by"),
        when=lambda given: tune_of(given).by == "stopping" and given.tracking.told,
        why="with {tune.by=stopping} what lost and how many trainings there were stays secret, and "
        "a tracker would be told of each",
        instead="leave {tracking} and {tracking.metrics_port} out",
    ),
)
"""What a choice among candidates leaves out."""
