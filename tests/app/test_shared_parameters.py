"""`model.shared` and LoRA in the app: what travels, and what is refused before it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.server import train
from fl_dp.app.task_client import app
from fl_dp.app.workload import initial_arrays_of
from fl_dp.clients.node_privacy import simulated_nodes
from fl_dp.statement.check import statement_page

SMALL = ["model=mlp", "model.hidden=4", "task.num_clients=2", "rounds=2", "client.epochs=1"]
NO_CHECK = "privacy.contribution_check=false"


def trained(tmp_path: Path, *overrides: str) -> tuple[Any, dict[str, Any]]:
    """Train in this process; return Flower's result and the statement."""
    settings = compose_settings(
        [
            *SMALL,
            "selection.sampling_rate=0.9",
            f"output_dir={tmp_path}",
            "run_name=run",
            *overrides,
        ]
    )
    nodes = range(settings.task.num_clients)
    grid = InProcessGrid(app, [{"partition-id": node} for node in nodes])
    with simulated_nodes():
        result = train(grid, settings, run_id="1")
    return result, json.loads((tmp_path / "run" / "privacy.json").read_text())


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([NO_CHECK, "model.shared=['5.*']"], ["5.weight", "5.bias"]),
        (["model.shared=['5.*']", "privacy=dp_sgd", "dp_sgd.steps=1"], ["5.weight", "5.bias"]),
        ([NO_CHECK, "model.lora_rank=2"], ["1.b.weight", "3.b.weight", "5.b.weight"]),
    ],
)
def test_the_server_has_what_travels_alone_and_the_statement_says_what(
    tmp_path: Path, overrides: list[str], names: list[str]
) -> None:
    result, statement = trained(tmp_path, *overrides)
    assert list(result.arrays) == names
    assert statement["shared_parameters"] == names
    assert "neither released nor covered" in statement_page(statement)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.shared=['5.*','9.*']", r"model\.shared=.*'9\.\*' matches none"),
        ("model.shared=['*']", "match every parameter"),
    ],
)
def test_patterns_that_do_not_fit_the_model_are_refused(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        initial_arrays_of(compose_settings([*SMALL, override]))


def test_factors_need_a_rank() -> None:
    with pytest.raises(Exception, match=r"write model\.lora_rank=4 too"):
        compose_settings(["model.lora_train=both"])
