"""`fl-dp price`: refusals, and one small price."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["privacy=none"], "privacy=none costs nothing"),
        (["--seeds", "0"], "--seeds is 0; write at least 1"),
        (["task=csv", "task.data_dir=/nowhere"], "add --data-is-public if everybody may see them"),
        (["statistic.query=count"], "trains nothing: write `fl-dp stats count`"),
    ],
)
def test_what_has_no_price_is_one_line(arguments: list[str], message: str) -> None:
    result = call("price", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "experiments without privacy" in result.stderr


def test_what_was_asked_for_is_checked_before_the_steps_to_it() -> None:
    result = call("price", "selection=own_budgets", "--seeds", "1")
    assert result.exit_code == 2
    assert "selection=own_budgets needs selection.budgets=" in result.stderr
    assert "of training 3 of 4" not in result.stderr + result.stdout


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    result = call("price", f"resume={tmp_path}")
    assert result.exit_code == 2
    assert f"there is no run in {tmp_path}" in result.stderr


@pytest.mark.nightly
@pytest.mark.simulation
@pytest.mark.xdist_group("simulation")
@pytest.mark.timeout(900)
def test_a_small_price_adds_up_and_its_last_step_is_private(tmp_path: Path) -> None:
    options = "--seeds 1 --json rounds=1 task.num_clients=8 privacy.epsilon=4"
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "fl-dp"),
            "price",
            *options.split(),
            "run_name=one price",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    assert "experiments without privacy" in done.stderr
    found = json.loads(done.stdout)
    steps = found["steps"]
    assert [step["private"] for step in steps] == [False, False, False, True]
    assert sum(step["cost_mean"] for step in steps[1:]) == pytest.approx(found["cost_of_all"])
    folder = tmp_path / "runs" / "one price"
    assert json.loads((folder / "price.json").read_text()) == found
    config = (folder / "step-1-seed-0" / "config.yaml").read_text()
    assert "engine: in_process" in config  # unless asked for otherwise
    epsilons = [
        json.loads((folder / f"step-{number}-seed-0" / "privacy.json").read_text())["epsilon"]
        for number in (1, 2, 3, 4)
    ]
    assert epsilons[:2] == [{}, {}]  # nothing is promised
    assert epsilons[2]["rdp"] > 1e4  # nor with next to no noise
    assert min(epsilons[3].values()) <= found["epsilon"] <= 4.0
    again = call("price", "--json", f"resume={folder}")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["steps"] == steps
