"""`fl-dp plan`: show what a training would spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fl_dp.guarantee import Guarantee

from .console import (
    AsJson,
    Overrides,
    doing,
    exit_on_errors,
    fail,
    note,
    out,
    print_json,
    warn,
    warnings_shown,
)

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings
    from fl_dp.plan import Plan, RecordPlan
    from fl_dp.plan.noise_left import NoiseLeft
    from fl_dp.terminal.plan_view import PlanView


def plan(
    overrides: Overrides = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Write noise and epsilon over the rounds here, PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what a training would spend, without training.

    OVERRIDES are settings, KEY=VALUE, for example `privacy.epsilon=4 rounds=200
    task.num_clients=500 selection.sampling_rate=0.1 schedule=seed_rule
    privacy.neighboring_relation=replace-one`.

    Shows epsilon by each accountant (report the smallest), the noise multipliers (calibrated unless
    `privacy.noise_multiplier` is given), and what splitting epsilon over the rounds would cost.

    Prints the error of the released sum, by which two plans compare: the standard deviation of the
    noise on the mean of a round, and on the total of all rounds.
    """
    from fl_dp.app.cautions import cautions
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.local.auto_hosting import hosted
    from fl_dp.app.local.devices import Machine

    from .jobs import tell_recipes

    if plot is not None:
        _check_picture(plot)
    with exit_on_errors(as_json=as_json):
        settings = compose_settings(overrides or [])
        settings.require_training()
        tell_recipes([overrides or []])
        settings, _ = hosted(settings, Machine.here())
        if plot is not None and settings.protects_records_alone:
            fail("the noise of DP-SGD does not change: there is no picture", status=2)
        with doing("calibrating the noise and composing the rounds"), warnings_shown():
            from fl_dp.app.planning import make_plan, make_record_plan
            from fl_dp.terminal.plan_view import PlanView
            from fl_dp.terminal.record_view import (
                promise_to_records,
                record_plan_json,
                record_plan_table,
            )

            record_plan = make_record_plan(settings, within_budget=False)
            client_plan: Plan | None = None
            view: PlanView | None = None
            if not settings.protects_records_alone:
                client_plan = make_plan(settings, within_budget=False)
                view = PlanView.of(client_plan)
            noises = _noises_left(settings, client_plan, record_plan)
    _warn_of_records(record_plan, settings)
    _warn_of_empty_clients(settings)
    for text in cautions(settings):
        warn(text)
    for noise in noises:
        if noise.warning is not None:
            warn(noise.warning)
    noise_json = {"noise_left": [noise.to_dict() for noise in noises]}
    if view is None:
        assert record_plan is not None  # DP-SGD alone
        if as_json:
            print_json(record_plan_json(record_plan) | {"rounds": settings.rounds} | noise_json)
        else:
            out.print(record_plan_table(record_plan))
            _show_guarantee(record_plan, record_plan.epsilon().best)
            _show_noise(noises)
            _show_promise(promise_to_records(record_plan))
        return
    budget = settings.privacy.get("epsilon")
    if budget is not None and view.bounds.best > budget:
        warn(
            f"these rounds spend {view.guarantee}, more than privacy.epsilon={budget:g}: `fl-dp "
            "run` will refuse; raise it or leave privacy.noise_multiplier out"
        )
    insecure = None
    if settings.privacy.get("insecure_seed") is not None:
        insecure = "privacy.insecure_seed"
    _warn_of_no_promise(view.guarantee, insecure=insecure)
    if plot is not None:
        _draw(view, plot)
    if as_json:
        records = {} if record_plan is None else {"records": record_plan_json(record_plan)}
        print_json(view.to_dict() | {"budget": budget} | records | noise_json)
        return
    out.print(view.table())
    _show_guarantee(view.plan, view.bounds.best)
    _show_promise(view.promise)
    over_rounds = view.rounds_table()
    if over_rounds is not None:
        out.print(over_rounds)
    if record_plan is not None:
        out.print(record_plan_table(record_plan))
        _show_guarantee(record_plan, record_plan.epsilon().best)
        _show_promise(promise_to_records(record_plan))
    _show_noise(noises)
    if plot is not None:
        out.print(f"Picture: {plot}", soft_wrap=True)


def _noises_left(
    settings: Settings, plan: Plan | None, record_plan: RecordPlan | None
) -> list[NoiseLeft]:
    """Return the noise beside what can be learned; nothing if the model can't be built here."""
    from fl_dp.app.noise_of_settings import noises_left

    try:
        return noises_left(settings, plan, record_plan)
    except (OSError, ModuleNotFoundError, ValueError) as error:
        note(f"how much the noise hides is not told, as the model can't be built here: {error}")
        return []


def _show_noise(noises: Sequence[NoiseLeft]) -> None:
    for noise in noises:
        out.print(noise.in_words, markup=False)


def _show_guarantee(plan: Plan | RecordPlan, epsilon: float) -> None:
    out.print(f"Promise: {Guarantee.of(plan, epsilon)}", soft_wrap=True, markup=False)


def _show_promise(promise: Mapping[str, str]) -> None:
    for name, text in promise.items():
        out.print(f"{name}: {text}", markup=False)


def _warn_of_records(record_plan: RecordPlan | None, settings: Settings) -> None:
    if record_plan is None:
        return
    budget = settings.record_training.epsilon
    if budget is not None and record_plan.budget.epsilon > budget:
        warn(
            f"a client's rounds spend {Guarantee.of(record_plan)}, more than "
            f"dp_sgd.epsilon={budget:g}: `fl-dp run` will refuse"
        )
    insecure = None
    if not settings.record_training.secure_randomness:
        insecure = "dp_sgd.secure_randomness=false"
    _warn_of_no_promise(Guarantee.of(record_plan, record_plan.epsilon().best), insecure=insecure)


def _warn_of_empty_clients(settings: Settings) -> None:
    """Warn of a split that a run refuses, if the data are read in no time."""
    from fl_dp.app.local.auto_hosting import is_small
    from fl_dp.app.workload import require_records

    if settings.task.partition != "dirichlet" or not is_small(settings.task):
        return
    try:
        require_records(settings)
    except ValueError as error:
        warn(f"`fl-dp run` will refuse: {error}")


def _warn_of_no_promise(guarantee: Guarantee, *, insecure: str | None) -> None:
    """Warn if nothing is promised, because of epsilon's size or of an insecure setting."""
    if insecure is not None:
        warn(f"NO PRIVACY: with {insecure} nothing is promised")
    elif guarantee.warning is not None:
        warn(guarantee.warning)


def _check_picture(plot: Path) -> None:
    if not plot.parent.is_dir():
        fail(f"no folder {plot.parent} to write the picture to", status=2)
    if plot.suffix.lower() != ".png" or plot.is_dir():
        fail(f"the picture is a PNG: write a name that ends in .png, got '{plot}'", status=2)


def _draw(view: PlanView, plot: Path) -> None:
    try:
        drawn = view.draw(plot)
    except OSError as error:
        fail(f"the picture can't be written: {error}", status=2)
    if not drawn:
        fail("no picture without matplotlib: pip install 'fl-dp[viewer]' brings it", status=1)
