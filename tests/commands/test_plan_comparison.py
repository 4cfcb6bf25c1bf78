"""`fl-dp plan --compare`: kinds of noise beside their promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import call, json_of, said_on_stderr

SEEN = (
    "plan",
    "--compare",
    "--cohort-seen",
    "task=digits",
    "rounds=40",
    "privacy.epsilon=4",
    "selection.sampling_rate=0.1",
)


def test_a_table_with_promises_a_pick_and_a_picture(tmp_path: Path) -> None:
    target = tmp_path / "noise.png"
    result = call(*SEEN, "--plot", str(target))
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "nothing about" in shown
    assert "Pick: spaced, 10 rounds apart" in shown
    assert "Write: noise=spaced noise.separation=10 noise.bands=10" in shown
    assert "calibrating correlated noise" in said_on_stderr(result)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_the_same_as_json() -> None:
    document = json_of(*SEEN, "--json", "--available", "0.8")
    independent, spaced = document["prices"]
    assert (independent["noise"], independent["memory_bytes"]) == ("independent", 0)
    assert (spaced["separation"], len(spaced["coefficients"])) == (8, spaced["bands"])
    assert spaced["relative_error"] < 1.0 == independent["relative_error"]
    assert spaced["memory_bytes"] == 8 * (spaced["bands"] - 1) * 650  # digits: 65 by 10
    assert document["pick"] == 1


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("privacy=local", "write privacy=central"),
        ("privacy=distributed", "write privacy=central"),
        ("privacy.neighboring_relation=replace-one", "compared for zero-out neighbours"),
        ("privacy.noise_multiplier=2", "compared at one budget"),
        ("schedule=cosine", "compare with schedule=constant"),
        ("selection=own_budgets", "has one for each group"),
    ],
)
def test_what_correlated_noise_does_not_go_with_is_refused(override: str, why: str) -> None:
    result = call(*SEEN, override)
    assert result.exit_code == 2
    assert why in said_on_stderr(result)
