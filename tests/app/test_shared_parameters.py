"""`model.shared` where records alone are protected: `test_shared_in_every_mode.py` has the rest."""

from __future__ import annotations

from pathlib import Path

from app_trainings import trained_in_process
from safetensors.numpy import load_file

from fl_dp.statement.check import statement_page

SMALL = ["model=mlp", "model.hidden=4", "task.num_clients=2", "rounds=2", "client.epochs=1"]


def test_the_server_has_what_travels_alone_and_the_statement_says_what(tmp_path: Path) -> None:
    by_records = ("privacy=dp_sgd", "dp_sgd.steps=1", "selection.sampling_rate=0.9")
    run = trained_in_process(tmp_path, *SMALL, *by_records, "model.shared=['5.*']")
    assert load_file(run.model).keys() == {"5.weight", "5.bias"}
    statement = run.read_statement()
    assert statement["shared_parameters"] == ["5.weight", "5.bias"]
    assert "neither released nor covered" in statement_page(statement)
