"""`metrics.evaluate_every`: fewer evaluations on public rows, and nothing else is different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_trainings import trained_run

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app.run_folder import RunFolder
from fl_dp.strategies import PrivateLoop
from fl_dp.tasks.public_scores import Score
from fl_dp.terminal.progress import progress_line


def run(folder: Path, *overrides: str) -> RunFolder:
    small = ("task.num_clients=20", "client.epochs=1", "privacy.insecure_seed=3")
    return trained_run(folder, *small, *overrides)


def evaluated(lines: list[dict[str, Any]]) -> list[int]:
    return [line["round"] for line in lines if Score.in_line(line).value is not None]


def test_every_third_round_and_the_last_are_evaluated_and_the_model_is_the_same(
    tmp_path: Path,
) -> None:
    each = run(tmp_path / "each", "rounds=7")
    third = run(tmp_path / "third", "rounds=7", "metrics.evaluate_every=3")
    lines, all_lines = third.read_metrics(), each.read_metrics()
    assert evaluated(all_lines) == list(range(8))
    assert evaluated(lines) == [0, 3, 6, 7]
    # All else of a line stands in every round: epsilon, cohort, bytes.
    for line, other in zip(lines, all_lines, strict=True):
        kept = {name: value for name, value in line.items() if not name.startswith("test_")}
        assert kept == {name: other[name] for name in kept}
    assert lines[-1] == all_lines[-1]
    assert third.model.read_bytes() == each.model.read_bytes()
    assert third.read_statement()["epsilon"] == each.read_statement()["epsilon"]


def test_a_training_that_ends_early_has_its_last_model_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = PrivateLoop.open

    def until_five(self: PrivateLoop, server_round: int, *args: Any) -> Any:
        if server_round > 5:
            raise PrivacyBudgetExhausted("the next round does not fit")
        return opened(self, server_round, *args)

    monkeypatch.setattr(PrivateLoop, "open", until_five)
    lines = run(tmp_path, "rounds=9", "metrics.evaluate_every=4").read_metrics()
    assert [line["round"] for line in lines] == list(range(6))
    assert evaluated(lines) == [0, 4, 5]
    assert lines[-1]["test_loss"] > 0.0


def test_the_progress_line_keeps_the_last_score(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    with progress_line(Console(width=200), "a", rounds=2) as told:
        told(
            {
                "round": 1,
                "test_loss": 0.5,
                "test_accuracy": 0.75,
                "epsilon": 1.0,
                "promise": {"budget": 8.0},
            }
        )
        told(
            {
                "round": 2,
                "test_loss": None,
                "test_accuracy": None,
                "epsilon": 2.0,
                "promise": {"budget": 8.0},
            }
        )
    said = capsys.readouterr().out
    assert "round 2/2, test accuracy 0.750, epsilon 2" in " ".join(said.split())
