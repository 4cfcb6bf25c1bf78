"""Settings that can't go together: refused for one reason each, and all of them in the guide."""

from __future__ import annotations

import ast
import traceback
import warnings
from functools import cache
from pathlib import Path

import pytest
from exclusions import ROWS, listed

from fl_dp.app.compose import compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.overrides import group_options
from fl_dp.app.planning import make_plan, make_record_plan
from fl_dp.app.statistics import statistic_plan
from fl_dp.option_errors import IncompatibleOptions

ROOT = Path(__file__).resolve().parents[2]
Place = tuple[str, int]

_RECORDS = "privacy.unit=record privacy.neighboring_relation=replace-one"
_GRADIENTS = "privacy=distributed_records"
_CYCLIC = "privacy=correlated privacy.groups=4 privacy.bands=4"
_OWN = "selection.budgets=[1,8] selection.shares=[0.5,0.5]"
_TUNED = "tune.candidates=['client.epochs=1','client.epochs=2']"
_NUMBERS = "task=csv task.data_dir=/nowhere task.label_range=[0,9]"
_SHARES, _ALL = "privacy=distributed", "selection.sampling_rate=1"

EXAMPLES: tuple[tuple[str, ...], ...] = (
    (
        f"{_NUMBERS} metrics.accuracy=[0,1]",
        f"{_NUMBERS} selection=exponential selection.utility=accuracy",
    ),
    (
        f"{_GRADIENTS} model.shared=['1.bias']",
        f"{_RECORDS} model.shared=['1.bias']",
    ),
    (
        "privacy=local selection=fixed",
        f"{_SHARES} selection=own_budgets {_OWN}",
        "privacy=local selection=public clipping=adaptive",
        "privacy=none schedule=linear",
        f"{_GRADIENTS} dp_sgd=on",
    ),
    (
        "privacy=local selection=public simulation.units_per_node=50",
        "privacy=none metrics.private_epsilon=1",
        f"{_SHARES} {_ALL} weight_cap=9 total_weight=99",
        "statistic.query=count privacy=local",
        f"statistic.query=count {_SHARES} statistic.law=laplace",
    ),
    ("privacy=local selection=poisson selection.sampling_rate=0.5",),
    ("selection.participation_cap=9",),
    ("privacy=local selection=public selection.participation_cap=9 schedule=linear",),
    ("selection.sampling_rate=1 selection.participation_cap=9 selection.coins_at_nodes=true",),
    tuple(
        f"selection={name} simulation.units_per_node=3" for name in ("fixed", "truncated_poisson")
    ),
    ("selection=truncated_poisson privacy.neighboring_relation=add-or-remove-one",),
    tuple(
        f"selection={name} privacy.neighboring_relation=add-or-remove-one"
        for name in ("public", "exponential")
    ),
    (
        "privacy.unit=record privacy.neighboring_relation=zero-out",
        "privacy.unit=record privacy.neighboring_relation=add-or-remove-one",
    ),
    (
        "privacy.neighboring_relation=add-or-remove-one simulation.units_per_node=5",
        "privacy.neighboring_relation=add-or-remove-one selection.coins_at_nodes=true",
    ),
    ("selection=exponential selection.records_per_client=9",),
    (f"{_SHARES} selection=poisson",),
    (f"{_SHARES} selection.coins_at_nodes=true",),
    (f"{_SHARES} selection=public simulation.units_per_node=5",),
    (
        f"{_SHARES} {_ALL} privacy.neighboring_relation=add-or-remove-one",
        f"{_GRADIENTS} privacy.neighboring_relation=add-or-remove-one",
    ),
    (f"{_SHARES} {_ALL} compression.up=quantize",),
    (f"{_SHARES} {_ALL} roster_may_grow=true", f"{_CYCLIC} roster_may_grow=true"),
    ("selection=exponential selection.utility=update_norm simulation.units_per_node=50",),
    (
        "compression.up=quantize simulation.units_per_node=50",
        "compression.up=quantize selection.coins_at_nodes=true",
    ),
    (f"{_CYCLIC} selection.participation_cap=5",),
    (f"{_CYCLIC} privacy.neighboring_relation=replace-one",),
    (f"{_CYCLIC} privacy.separation=4",),
    ("privacy=correlated selection=public privacy.groups=4",),
    (
        "privacy=correlated selection=public selection.sampling_rate=1",
        "privacy=correlated selection=public selection.sampling_rate=0.75",
    ),
    ("task=csv task.partition=nodes simulation.units_per_node=2",),
    tuple(
        f"dp_sgd=on {setting}"
        for setting in ("metrics.loss=[0,5]", "weight_cap=9", "selection=exponential")
    ),
    (
        "statistic.query=count dp_sgd=on",
        f"statistic.query=count {_RECORDS}",
        "statistic.query=count privacy.neighboring_relation=add-or-remove-one",
        "dp_sgd=on metrics.private_epsilon=1",
        f"{_SHARES} selection=public metrics.private_epsilon=1",
    ),
    ("task=csv task.person_column=patient features=patches features.public=9",),
    ("statistic.query=count privacy.noise_multiplier=2 statistic.law=laplace",),
    (*(f"{_TUNED} privacy={mode}" for mode in ("local", "distributed")), f"{_TUNED} dp_sgd=on"),
    (f"{_TUNED} privacy.noise_multiplier=2",),
    (f"{_TUNED} tune.by=stopping selection=public selection.participation_cap=9",),
    (f"{_TUNED} tune.by=stopping tracking.metrics_port=9100",),
)
"""Overrides that are refused; those of one row for one reason."""


# Settings compose no such plan; tests/plan and tests/strategies meet these rows.
OF_PYTHON = {
    "nodes that flip the coins themselves ask no selection",
    "where units are records a sum is a step of DP-SGD already, and clients take none of their own",
}

RAISED_IN_PYTHON = (
    "clients that rest between two rounds differ in the rounds they take part in",
    "nodes that flip the coins themselves draw Poisson samples",
    "nodes do not say how many records they have, so they flip their own coins",
    "a server that lies chooses the cohorts, so a secure sum charges every round",
    "groups with budgets of their own take part in every round",
    "a {self.kind} plan has cohorts by",
    "means nothing where noise is added",
    "evaluation lets the server read what each client measures",
    "evaluation asks every client after a release",
    "evaluation lets the server read what clients measure",
)
"""Beginnings of errors that only plans in Python meet: keys have no such combination."""


@cache
def refusal(overrides: str) -> ValueError | None:
    """Return the error that settings end with before anything is started, None if there is none.

    Args:
        overrides: As on the command line, with spaces between them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            settings = compose_settings(overrides.split())
            if settings.statistic.query is not None:
                statistic_plan(settings)
                return None
            make_record_plan(settings)
            if settings.protects_clients:
                make_plan(settings)
        except ValueError as error:
            return error
    return None


@cache
def incompatible(overrides: str) -> IncompatibleOptions:
    """The error of options that exclude each other, whatever it was raised from."""
    error: BaseException | None = refusal(overrides)
    assert error is not None, f"{overrides} is not refused"
    while error is not None and not isinstance(error, IncompatibleOptions):
        error = error.__cause__
    assert error is not None, f"{overrides} is refused for another reason"
    return error


def reason(overrides: str) -> str | Place:
    """Why it is refused: a row's reason, or the statement that raises."""
    error = incompatible(overrides)
    if error.rule is not None:
        return error.rule.why
    # The statement, or what it calls.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = Path(frame.filename).resolve().relative_to(ROOT)
    return str(place), frame.lineno or 0


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row[0].replace(" ", ","))
def test_all_settings_of_a_row_are_refused_for_one_reason(row: tuple[str, ...]) -> None:
    assert len({reason(overrides) for overrides in row}) == 1


def test_every_row_has_an_example() -> None:
    met = {reason(overrides) for row in EXAMPLES for overrides in row}
    assert {rule.why for rule in ROWS} - met == OF_PYTHON


def test_every_other_place_that_refuses_a_combination_has_an_example() -> None:
    """Arguments of Python that say one thing twice are refused where they are read."""
    met = {reason(overrides) for row in EXAMPLES for overrides in row}
    unmet = {
        f"{file}:{lines.start}"
        for file, lines in raising_places() - _in_python()
        if not any(isinstance(at, tuple) and at[0] == file and at[1] in lines for at in met)
    }
    assert unmet == set()


@cache
def raising_places() -> set[tuple[str, range]]:
    """Every statement of the source that raises the error."""
    found = set()
    for folder in ("fl_dp", "strategies"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if "IncompatibleOptions(" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Raise) and "IncompatibleOptions" in ast.unparse(node):
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    found.add((str(file.relative_to(ROOT)), lines))
    return found


def _in_python() -> set[tuple[str, range]]:
    return {
        (file, lines)
        for file, lines in raising_places()
        if any(start in _written(file, lines) for start in RAISED_IN_PYTHON)
    }


def _written(file: str, lines: range) -> str:
    source = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return "\n".join(source[lines.start - 1 : lines.stop - 1])


def test_a_row_names_keys_or_their_last_words() -> None:
    keys = [f".{key}." for key in (*all_keys(), *group_options(), "metrics")]
    named = {name for rule in ROWS for name in rule.options}
    assert {name for name in named if not any(f".{name}." in key for key in keys)} == set()


def test_the_guide_has_the_list() -> None:
    assert listed() in (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_what_goes_together_is_not_refused() -> None:
    assert refusal("privacy.noise_multiplier=2 privacy.epsilon=null rounds=1") is None
    assert refusal("privacy=none") is None
