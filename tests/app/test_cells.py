"""Cells of an experiment: every training that it stands for, each with settings of its own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.app.cells import Cell, digest_of, expand
from fl_dp.app.compose import ConfigError, compose_settings, config_folder
from fl_dp.app.settings import Settings, SweepSettings

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPERIMENTS = sorted(
    path.stem
    for path in config_folder().glob("experiment/*.yaml")
    if "\nsweep:\n" in path.read_text(encoding="utf-8")
)


@cache
def cells_of(experiment: str) -> tuple[SweepSettings, list[Cell]]:
    return expand([f"experiment={experiment}"])


def where(cells: list[Cell]) -> list[tuple[str, str | None, int]]:
    return [(cell.curve, cell.axis_value, cell.settings.seed) for cell in cells]


def test_the_page_on_experiments_shows_each_with_its_picture() -> None:
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    assert len(EXPERIMENTS) >= 5
    for experiment in EXPERIMENTS:
        assert f"experiment={experiment}" in page


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_has_each_place_of_each_curve_once_a_seed(experiment: str) -> None:
    sweep, cells = cells_of(experiment)
    assert sweep.seeds is not None
    per_place = Counter((cell.curve, cell.axis_value) for cell in cells)
    assert set(per_place.values()) == {len(sweep.seeds)}
    for name, curve in sweep.curves.items():
        moving: list[str | None] = [*(curve.values or sweep.values or [])]
        places = [curve.at] if curve.at else moving or [None]
        assert [place for of, place in per_place if of == name] == places


@pytest.mark.parametrize("experiment", ["client_count", "udp_formula"])
def test_a_cell_s_overrides_compose_to_its_settings_and_are_one_training(experiment: str) -> None:
    """Only the first place of a curve is composed by Hydra; a training composes them all."""
    _, cells = cells_of(experiment)
    last = {cell.curve: cell for cell in cells}
    for cell in last.values():
        assert compose_settings(cell.overrides) == cell.settings
        assert cell.settings.sweep == SweepSettings()


def test_nothing_of_an_experiment_is_tuned_where_it_is_measured() -> None:
    """Reported numbers are of the test part; what chooses settings is of the validation part."""
    for experiment in EXPERIMENTS:
        assert not any(cell.settings.task.validation for cell in cells_of(experiment)[1])


# Overrides beside an experiment.


def test_values_and_seeds_of_the_command_line_replace_those_of_the_experiment() -> None:
    _, cells = expand(["experiment=schedules", "sweep.only=[constant]", "seed=3,4"])
    assert {cell.settings.seed for cell in cells} == {3, 4}
    _, cells = expand(
        [
            "experiment=privacy_levels",
            "sweep.only=[central,dp_sgd]",
            "privacy.epsilon=3",
            "seed=0",
            "rounds=7",
        ]
    )
    assert where(cells) == [("central", "3", 0), ("dp_sgd", "3", 0)]
    assert {cell.settings.rounds for cell in cells} == {7}
    assert cells[0].settings.privacy.epsilon == cells[1].settings.record_training.epsilon == 3.0


def test_several_values_of_another_key_multiply_the_curves() -> None:
    _, cells = expand(
        ["experiment=schedules", "sweep.only=[constant]", "seed=0", "rounds=2,3"],
    )
    assert where(cells) == [("constant rounds=2", None, 0), ("constant rounds=3", None, 0)]


def test_a_curve_that_does_not_move_stays_where_it_is() -> None:
    _, cells = expand(
        ["experiment=privacy_levels", "sweep.only=[without privacy]", "privacy.epsilon=1,2"]
    )
    assert {cell.axis_value for cell in cells} == {"inf"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["experiment=schedules", "schedule=linear", "schedule.spend=late"],
            "have the same settings",
        ),
        (["experiment=records,selection"], "one experiment at a time"),
        (["experiment=privacy_levels", "privacy.epsilon=1,-1"], "must be positive"),
        (["seed=0,0"], "have the same settings"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_in_one_line(
    overrides: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        expand(overrides)
    assert "\n" not in str(refused.value)


# Formulas of the literature.


def test_a_formula_sets_the_noise_of_each_upload_and_claims_no_budget() -> None:
    """Golden: five uploads of a client at delta 1e-5."""
    _, cells = cells_of("udp_formula")
    noise = {
        (cell.curve, cell.axis_value): cell.settings.privacy.noise_multiplier or math.nan
        for cell in cells
    }
    assert noise["udp", "1"] == pytest.approx(10.729830131446736)
    assert noise["udp, nobody caps", "1"] == noise["udp", "1"]
    assert noise["exposures", "1"] == pytest.approx(24.224026313026947)
    assert math.isnan(noise["calibrated", "1"])
    assert {c.settings.privacy.epsilon for c in cells if c.curve != "calibrated"} == {None}
    # The heuristic holds for small budgets, and not for large ones.
    spent = {claim: gaussian_epsilon(noise["udp", claim] / 5**0.5, 1e-5) for claim in ("1", "64")}
    assert spent["1"] < 1.0
    assert spent["64"] > 2 * 64.0


def test_a_formula_of_a_client_s_noise_is_refused_where_the_server_adds_it() -> None:
    with pytest.raises(ConfigError, match="write privacy=local among its overrides"):
        expand(["experiment=udp_formula", "privacy=central", "selection.participation_cap=null"])


# Digests.


@pytest.mark.parametrize(
    "override",
    ["privacy.epsilon=7", "seed=1", "task.validation=true"],
)
def test_a_digest_tells_settings_apart_that_change_a_result(override: str) -> None:
    assert digest_of(compose_settings([override])) != digest_of(Settings())


@pytest.mark.parametrize("override", ["output_dir=/a", "simulation.units_per_node=3"])
def test_a_digest_says_nothing_of_folders_and_machines(override: str) -> None:
    assert digest_of(compose_settings([override])) == digest_of(Settings())


def test_a_digest_survives_the_run_s_own_file(tmp_path: Any) -> None:
    from fl_dp.app.run_folder import RunFolder

    _, cells = cells_of("selection")
    folder = RunFolder(tmp_path / "run")
    folder.create(replace(cells[0].settings.hosting(4), run_name="run"))
    assert digest_of(folder.read_settings()) == cells[0].digest
