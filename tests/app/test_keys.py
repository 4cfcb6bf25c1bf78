"""Errors of the library in the words of whoever wrote a configuration."""

from __future__ import annotations

import pytest
from local_grid import LocalGrid

from fl_dp.config import compose_settings
from fl_dp.keys import DP_SGD_KEYS, PLAN_KEYS, in_keys, told_in_keys
from fl_dp.planning import make_plan
from fl_dp.strategies import wait_for_roster


@pytest.mark.parametrize("key", [*PLAN_KEYS.values(), *DP_SGD_KEYS.values()])
def test_every_key_that_an_error_may_name_can_be_written(key: str) -> None:
    if key.startswith(("write ", "`fl-dp")):
        key = key.removeprefix("write ")
        key = "" if key.startswith("`") else key
    name, _, value = key.partition("=")
    if value:
        compose_settings([key])
    elif name:
        settings = compose_settings([])
        for part in name.split("."):
            assert hasattr(settings, part), name
            settings = getattr(settings, part)


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
