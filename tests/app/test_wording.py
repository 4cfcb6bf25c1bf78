"""Errors of the library in the words of whoever wrote a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from fl_dp.app.wording import in_keys, said_in_keys
from local_grid import LocalGrid

from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.app.server import train
from fl_dp.ledger import PrivacyLedger
from fl_dp.strategies import RosterTooLarge, wait_for_roster


def test_a_roster_that_is_too_large_names_keys_on_the_command_line() -> None:
    grid = LocalGrid(lambda message, partition: None, 8)
    with pytest.raises(RuntimeError, match="declare") as refused, said_in_keys():
        wait_for_roster(grid, 9, timeout=0.0)
    assert "task.num_clients=8" in str(refused.value)
    with pytest.raises(RuntimeError) as refused, said_in_keys():
        wait_for_roster(grid, 4, timeout=0.0, roster_may_grow=False)
    assert "task.num_clients=8" in str(refused.value)
    assert "roster_may_grow=true" in str(refused.value)


@pytest.mark.parametrize(
    ("said", "in_words_of_keys"),
    [
        ("write sampling_rate=1 or sampling=VisibleSampling(cohort=...), got", "selection=public,"),
        ("write SecureSum(bits=12)", "write secure_sum.bits=12"),
        ("secure_sum=SecureSum(roster=True)", "secure_sum.roster=true"),
        (
            "raise least (40) or threshold (9)",
            "raise secure_sum.least (40) or secure_sum.threshold (9)",
        ),
        ("or write cross_check=True", "write secure_sum.cross_check=true"),
        ("with secure_sum leave it out", "with privacy.mode=distributed leave it out"),
        ("go on from its checkpoint with resume(checkpoint)", "`fl-dp run resume=FOLDER`"),
    ],
)
def test_advice_of_a_plan_is_said_in_keys(said: str, in_words_of_keys: str) -> None:
    assert in_words_of_keys in in_keys(said)


@pytest.mark.parametrize("selection", ["exponential", "public", "fixed", "truncated_poisson"])
def test_a_refused_selection_is_called_what_was_written(selection: str) -> None:
    settings = compose_settings(["selection.coins=nodes", f"selection={selection}"])
    with pytest.raises(ValueError, match=rf"use selection=poisson, not selection={selection}$"):
        make_plan(settings)


def test_what_is_a_key_already_is_left_alone() -> None:
    for text in ("task.num_clients=4", "num_clients_2", "secure_sum.least=9"):
        assert in_keys(text) == text


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
