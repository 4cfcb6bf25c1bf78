"""`fl-dp plan`: tell what a training would spend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import (
    AsJson,
    Overrides,
    doing,
    fail,
    failures_told,
    out,
    print_json,
    warn,
    warnings_shown,
)

if TYPE_CHECKING:
    from fl_dp.accounting import ExamplePlan
    from fl_dp.report.plan_view import PlanView
    from fl_dp.settings import Settings


def plan(
    overrides: Overrides = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Write noise and epsilon over the rounds here, PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a training would spend, without training.

    OVERRIDES are Hydra's, for example `privacy.epsilon=4 rounds=200 task.num_clients=500
    selection.sampling_rate=0.1 schedule=seed_rule privacy.neighboring_relation=replace-one`.

    Epsilon by each accountant, the smallest to quote; the noise multipliers, calibrated if
    `privacy.noise_multiplier` is not given; what splitting epsilon over the rounds would cost.
    """
    from fl_dp.combinations import check_combinations
    from fl_dp.config import compose_settings
    from fl_dp.devices import Machine
    from fl_dp.hosting import hosted

    from .cautions import cautions

    if plot is not None:
        _check_picture(plot)
    with failures_told():
        settings = compose_settings(overrides or [])
        check_combinations(settings)
        settings, _ = hosted(settings, Machine.here())
        if plot is not None and settings.privacy.mode == "example":
            fail("the noise of DP-SGD does not change: there is no picture", status=2)
        with doing("calibrating the noise and composing the rounds"), warnings_shown():
            from fl_dp.planning import make_example_plan, make_plan
            from fl_dp.report.example_view import (
                example_plan_json,
                example_plan_table,
                promise_to_records,
            )
            from fl_dp.report.plan_view import PlanView

            examples = make_example_plan(settings, within_budget=False)
            view = None
            if examples is None or settings.privacy.mode != "example":
                view = PlanView.of(make_plan(settings, within_budget=False))
    _warn_of_records(examples, settings)
    for text in cautions(settings):
        warn(text)
    if view is None:
        assert examples is not None  # DP-SGD alone
        if as_json:
            print_json(example_plan_json(examples) | {"rounds": settings.rounds})
        else:
            out.print(example_plan_table(examples))
            _show_promise(promise_to_records(examples))
        return
    budget = settings.privacy.epsilon
    if budget is not None and view.bounds.best > budget:
        warn(
            f"these rounds spend epsilon {view.bounds.best:.4g}, more than the budget of "
            f"{budget:g}: `fl-dp run` will refuse; raise privacy.epsilon or leave "
            "privacy.noise_multiplier out"
        )
    if plot is not None:
        _draw_plan(view, plot)
    if as_json:
        records = {} if examples is None else {"records": example_plan_json(examples)}
        print_json(view.to_dict() | {"budget": budget} | records)
        return
    out.print(view.table())
    _show_promise(view.promise)
    over_rounds = view.rounds_table()
    if over_rounds is not None:
        out.print(over_rounds)
    if examples is not None:
        out.print(example_plan_table(examples))
        _show_promise(promise_to_records(examples))
    if plot is not None:
        out.print(f"Picture: {plot}", soft_wrap=True)


def _show_promise(promise: Mapping[str, str]) -> None:
    for name, text in promise.items():
        out.print(f"{name}: {text}", markup=False)


def _warn_of_records(examples: ExamplePlan | None, settings: Settings) -> None:
    privacy, chosen = settings.privacy, settings.dp_sgd
    budget = privacy.epsilon if privacy.mode == "example" else chosen.epsilon
    if examples is not None and budget is not None and examples.budget.epsilon > budget:
        warn(
            f"a client's rounds spend epsilon {examples.budget.epsilon:.4g} of its records, more "
            f"than the budget of {budget:g}: `fl-dp run` will refuse"
        )


def _check_picture(plot: Path) -> None:
    if not plot.parent.is_dir():
        fail(f"no folder {plot.parent} to write the picture to", status=2)
    if plot.suffix.lower() != ".png" or plot.is_dir():
        fail(f"the picture is a PNG: write a name that ends in .png, got '{plot}'", status=2)


def _draw_plan(view: PlanView, plot: Path) -> None:
    try:
        drawn = view.draw(plot)
    except OSError as error:
        fail(f"the picture can't be written: {error}", status=2)
    if not drawn:
        fail("no picture without matplotlib: pip install 'fl-dp[report]' brings it", status=1)
