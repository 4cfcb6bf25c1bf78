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


SHARED = (
    "plan",
    "--compare",
    "privacy=distributed_records",
    "task=digits",
    "task.num_clients=10",
    "rounds=200",
    "privacy.epsilon=2",
    "server_optimizer=fedavgm",
    "selection.sampling_rate=0.05",
)


def test_noise_in_shares_is_compared_by_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_dp.app.noise_comparison.seconds_of_a_node", lambda settings: 0.1)
    document = json_of(*SHARED, "--json")
    everybody, turns, coins = document["prices"]
    # 20 positions, momentum .9, 200 rounds: 1.097 by the specification's table.
    assert turns["relative_error"] == pytest.approx(1.097, abs=5e-4)
    assert everybody["relative_error"] == 1.0 < turns["relative_error"] < coins["relative_error"]
    shares = [price["share_of_gradients"] for price in (everybody, turns, coins)]
    assert shares == pytest.approx([1.0, 0.05, 0.05])
    assert turns["charged_rounds"] == 10 and turns["memory_bytes"] == 19 * 650 * 8
    assert document["pick"] == 0
    assert document["settings"].startswith("selection.sampling_rate=1 ")


@pytest.mark.parametrize(("seconds", "pick"), [(0.4, 0), (2.9, 0), (3.1, 1)])
def test_ten_minutes_of_gradients_in_all_rounds_are_no_reason_for_turns(
    seconds: float, pick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.app.noise_comparison.seconds_of_a_node", lambda settings: seconds)
    assert json_of(*SHARED, "--json")["pick"] == pick  # 200 rounds


def test_where_all_gradients_take_long_turns_are_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_dp.app.noise_comparison.seconds_of_a_node", lambda settings: 40.0)
    result = call(*SHARED)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "Pick: cyclic, 20 groups" in shown and "take a client 40 s a round here" in shown
    assert "Write: selection.sampling_rate=0.05 noise=cyclic" in shown
