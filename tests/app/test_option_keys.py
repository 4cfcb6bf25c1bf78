"""Errors of the library in the words of whoever wrote a configuration."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from local_grid import LocalGrid

from fl_dp.app.compose import compose_settings
from fl_dp.app.option_keys import errors_in_keys, in_keys, keys_of
from fl_dp.app.overrides import ConfigError
from fl_dp.app.planning import make_plan
from fl_dp.app.server import train
from fl_dp.ledger import PrivacyLedger
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.strategies import RosterTooLarge, wait_for_roster


def test_a_roster_that_is_too_large_names_keys_on_the_command_line() -> None:
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RuntimeError, match="declare") as refused, errors_in_keys():
        wait_for_roster(grid, 9, timeout=0.0)
    assert "task.num_clients=8" in str(refused.value)
    with pytest.raises(RuntimeError) as refused, errors_in_keys():
        wait_for_roster(grid, 4, timeout=0.0, roster_may_grow=False)
    assert "task.num_clients=8" in str(refused.value)
    assert "roster_may_grow=true" in str(refused.value)


@pytest.mark.parametrize(
    ("template", "in_python", "as_keys"),
    [
        (
            "write {sampling_rate=1} or {sampling=VisibleSampling(cohort=...)}",
            "write sampling_rate=1 or sampling=VisibleSampling(cohort=...)",
            "write selection.sampling_rate=1 or selection=public",
        ),
        ("{secure_sum.bits=12}", "SecureSum(bits=12)", "privacy.secure_sum.bits=12"),
        ("{secure_sum.roster=True}", "SecureSum(roster=True)", "privacy.secure_sum.roster=true"),
        ("raise {secure_sum.least}", "raise least", "raise privacy.secure_sum.least"),
        (
            "with {secure_sum} leave it",
            "with secure_sum leave it",
            "with privacy=distributed leave it",
        ),
        ("{unit='record'}", "unit='record'", "privacy.unit=record"),
        ("{coins_at_nodes=True}", "coins_at_nodes=True", "selection.coins=nodes"),
        ("leave {client_scheme} out", "leave client_scheme out", "leave privacy=local out"),
        ("{compression.up='top_k'}", "Compression(up='top_k')", "compression.up=top_k"),
        (
            "{sampling=PoissonSampling(sampling_rate=0.25)}",
            "sampling=PoissonSampling(sampling_rate=0.25)",
            "selection=poisson",
        ),
    ],
)
def test_an_option_is_rendered_for_its_reader(template: str, in_python: str, as_keys: str) -> None:
    error = OptionError(template)
    assert str(error) == in_python
    with pytest.raises(OptionError) as refused, errors_in_keys():
        raise error
    assert str(refused.value) == as_keys


def test_the_innermost_words_stay() -> None:
    law = "{sampling=VisibleSampling(cohort=9)}"
    words = errors_in_keys(), errors_in_keys(selection="exponential")
    with pytest.raises(OptionError, match=r"^selection=exponential$"), words[0], words[1]:
        raise OptionError(law)


def test_keys_of_an_error_are_data() -> None:
    try:
        try:
            raise IncompatibleOptions("no {coins_at_nodes=True}", options=("weight_cap",))
        except ValueError as error:
            raise ConfigError("wrapped") from error
    except ConfigError as wrapped:
        assert keys_of(wrapped) == ("weights.cap", "selection.coins")
    assert keys_of(ValueError("rounds")) == ()


def test_an_error_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(IncompatibleOptions("{unit=x} or {rounds}")))
    assert (str(error), error.options) == ("unit=x or rounds", ("unit", "rounds"))


@pytest.mark.parametrize("selection", ["exponential", "public"])
def test_a_refused_selection_is_called_what_was_chosen(selection: str) -> None:
    error = OptionError("not {sampling=VisibleSampling(cohort=9)}")
    words = errors_in_keys(selection=selection)
    with pytest.raises(OptionError, match=rf"^not selection={selection}$"), words:
        raise error


def test_what_is_a_key_already_is_left_alone() -> None:
    for key in ("task.num_clients", "privacy.secure_sum.least", "clipping"):
        assert in_keys(key, None) == key


def test_the_app_refuses_more_nodes_than_declared_in_keys_and_spends_nothing(
    tmp_path: Path,
) -> None:
    settings = compose_settings(
        [
            "task.num_clients=4",
            "rounds=1",
            "roster_timeout=0.1",
            f"output_dir={tmp_path}",
            "run_name=run",
        ]
    )
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RosterTooLarge, match=r"task\.num_clients=8, or .*roster_may_grow=true"):
        train(grid, settings, run_id="1")
    assert not grid.sent
    with PrivacyLedger.read(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.rounds_spent == 0


def test_words_of_too_few_bits_name_the_key_with_enough_of_them() -> None:
    settings = compose_settings(["privacy=distributed", "privacy.secure_sum.bits=8"])
    with pytest.raises(OptionError, match=r"8 bits .* write privacy\.secure_sum\.bits=10$"):
        make_plan(settings)
