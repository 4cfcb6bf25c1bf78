"""Errors of the library in the words of whoever wrote a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_grid import LocalGrid

from fl_dp.accounting import PrivacyLedger
from fl_dp.config import compose_settings
from fl_dp.keys import DP_SGD_KEYS, PLAN_KEYS, in_keys, told_in_keys
from fl_dp.planning import make_plan
from fl_dp.strategies import RosterTooLarge, wait_for_roster
from fl_dp.training import train


def test_every_key_that_an_error_may_name_can_be_written() -> None:
    written = [key.removeprefix("write ") for key in (*PLAN_KEYS.values(), *DP_SGD_KEYS.values())]
    choices = [key for key in written if "=" in key and not key.startswith("`")]
    assert "selection=public" in choices
    for key in choices:
        compose_settings([key])
    settings = compose_settings([])
    for key in set(written) - set(choices):
        if not key.startswith("`"):
            group, _, name = key.partition(".")
            assert hasattr(getattr(settings, group), name), key


def test_a_roster_that_is_too_large_names_keys_on_the_command_line() -> None:
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RuntimeError, match="declare") as refused, told_in_keys():
        wait_for_roster(grid, 9, timeout=0.0)
    assert "task.num_clients=8" in str(refused.value)
    with pytest.raises(RuntimeError) as refused, told_in_keys():
        wait_for_roster(grid, 4, timeout=0.0, roster_may_grow=False)
    assert "task.num_clients=8" in str(refused.value)
    assert "roster_may_grow=true" in str(refused.value)


def test_a_plan_that_no_mode_has_is_refused_in_keys() -> None:
    settings = compose_settings(["privacy=local", "selection=poisson"])
    with pytest.raises(ValueError, match="selection=public") as refused:
        make_plan(settings)
    for name in ("VisibleSampling(cohort", "client_scheme"):
        assert name not in str(refused.value)


def test_what_is_a_key_or_a_path_already_is_left_alone() -> None:
    for text in ("task.num_clients=4", "/data/num_clients/ledger.db", "num_clients_2"):
        assert in_keys(text) == text


def test_the_app_refuses_more_nodes_than_declared_in_keys_and_spends_nothing(
    tmp_path: Path,
) -> None:
    settings = compose_settings(
        ["task.num_clients=4", "rounds=1", f"output_dir={tmp_path}", "run_name=run"]
    )
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RosterTooLarge, match=r"task\.num_clients=8, or .*roster_may_grow=true"):
        train(grid, settings, run_id="1")
    assert not grid.sent
    with PrivacyLedger.read(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.rounds_spent == 0
