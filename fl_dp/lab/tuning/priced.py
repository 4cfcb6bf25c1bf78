"""Price of a choice among candidates, for the plan: what is refused, and the event of a vote."""

from __future__ import annotations

from fl_dp.accounting import IncompatibleOptions
from fl_dp.app.settings import Settings
from fl_dp.lab.settings import tune_of
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
    privacy, by = settings.privacy, tune_of(settings).by
    unused = ", ".join(f"tune.{key}" for key in tune_of(settings).unused)
    wrong = {
        f"{unused} has no part in tune.by={by}: leave it out": bool(unused),
        "`fl-dp tune` chooses for a promise to clients that the server keeps: write "
        "privacy=central, or tune on public data and write the settings that won": (
            privacy.mode != "central"
        ),
        "what is chosen by clients' data is charged to clients: leave dp_sgd=on out": (
            settings.protects_records
        ),
        "tune.share is a part of privacy.epsilon: leave privacy.noise_multiplier out, and write "
        "privacy.epsilon": privacy.noise_multiplier is not None or privacy.epsilon is None,
        "a vote asks all clients, and selection.coins=nodes samples them: leave it out": (
            by == "vote" and settings.selection.coins == "nodes"
        ),
        "noise that reacts to a plateau is not known before the trainings: with tune.by=stopping "
        "write another schedule": by == "stopping" and settings.schedule.name == "plateau",
        "tune.by=stopping charges whole trainings as one, and a participation cap charges clients: "
        "leave selection.participation_cap out": (
            by == "stopping" and settings.selection.participation_cap is not None
        ),
        "with tune.by=stopping what lost and how many trainings there were stays secret, and a "
        "tracker would be told of each: leave tracking and tracking.metrics_port out": (
            by == "stopping" and settings.tracking.told
        ),
    }
    found = [text for text, is_wrong in wrong.items() if is_wrong]
    if found:
        raise IncompatibleOptions("; ".join(found))
