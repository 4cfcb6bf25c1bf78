"""How many may be there: the roster that the plan declares, unless it may grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.unit_roster import DeclaredNodes, HostedUnits, Unit, nodes_of
from flwr.app import ArrayRecord
from local_grid import FIRST_NODE, LocalGrid, answer_with_update
from trainings import budgeted, plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan.hosting import Hosting
from fl_dp.strategies import DPFedAvg, RosterIncomplete, RosterTooLarge, wait_for_roster

INITIAL = record(w=np.zeros(1))


def nodes(count: int) -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.full(1, 0.5)}] * count), count)


def test_units_are_those_of_each_node_in_turn_and_there_may_be_millions() -> None:
    few = HostedUnits([3, 5, 9], 2)
    assert list(few) == [Unit(node, number) for node in (3, 5, 9) for number in (0, 1)]
    assert [few[place] for place in range(len(few))] == list(few)
    assert few[-1] == Unit(9, 1)
    assert few[1:3] == [Unit(3, 1), Unit(5, 0)]
    assert nodes_of(few) == nodes_of(list(few)) == [3, 5, 9]
    with pytest.raises(IndexError):
        few[6]
    assert HostedUnits(range(1, 3), 10**9)[10**9] == Unit(2, 0)


def private(folder: Path, **options: Any) -> DPFedAvg:
    return budgeted(folder, epsilon=1e4, delta=1e-3, **options)


def test_more_nodes_than_declared_are_an_error_before_anything_is_spent(tmp_path: Path) -> None:
    made, grid = private(tmp_path, roster_timeout=0.1), nodes(8)
    with pytest.raises(RosterTooLarge) as refused:
        made.start(grid, INITIAL, num_rounds=2)
    for said in ("4 clients", "8 nodes", "2 times", "num_clients=8", "roster_may_grow=True"):
        assert said in str(refused.value)
    assert "task." not in str(refused.value)
    assert not grid.sent
    assert made.ledger is not None
    assert made.ledger.rounds_spent == 0


def test_a_roster_that_may_grow_trains_all_and_divides_by_what_was_declared(
    tmp_path: Path,
) -> None:
    made, grid = private(tmp_path, roster_may_grow=True), nodes(8)
    result = made.start(grid, INITIAL, num_rounds=1)
    assert len(grid.sent) == 8
    # Noise multiplier below 0.1 over 4 clients: 0.5 is more than twenty deviations.
    assert result.arrays["w"].numpy()[0] == pytest.approx(8 * 0.5 / 4, abs=0.5)


def test_more_nodes_than_sums_hold_exactly_are_refused_before_a_charge(tmp_path: Path) -> None:
    plan = plan_of(6, noise_multiplier=1e-6, clipping=FixedClipping(norm=0.02))
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger, roster_may_grow=True)
        with pytest.raises(ValueError, match="at most 6 can be summed exactly"):
            strategy.start(nodes(7), INITIAL, num_rounds=1)
        assert ledger.rounds_spent == 0


def test_who_comes_later_takes_no_part_and_the_mean_stays_a_mean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, grid = private(tmp_path), nodes(8)
    grid.num_nodes = 4

    def arrive(server_round: int, arrays: ArrayRecord) -> None:
        grid.num_nodes = 8

    result = made.start(grid, INITIAL, num_rounds=2, evaluate_fn=arrive)
    asked = [message.metadata.dst_node_id - FIRST_NODE for message in grid.sent]
    assert asked == [0, 1, 2, 3] * 2
    assert result.arrays["w"].numpy()[0] == pytest.approx(2 * 0.5, abs=0.5)
    assert caplog.text.count("more nodes are connected than the plan declares") == 1


def test_a_node_that_was_restarted_counts_twice_for_a_while_and_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grid = nodes(5)

    def later(seconds: float) -> None:
        grid.num_nodes = {5: 3, 3: 4}[grid.num_nodes]  # another one is late meanwhile

    monkeypatch.setattr("fl_dp.clock.sleep", later)
    assert len(wait_for_roster(grid, 4, timeout=60.0, roster_may_grow=False)) == 4
    assert "5 nodes are connected: one that was restarted counts twice" in caplog.text


def test_a_node_that_is_gone_makes_room_for_another() -> None:
    declared = DeclaredNodes(2)
    assert declared.among([5, 9]) == [5, 9]
    assert declared.among([1, 5, 9]) == [5, 9]
    assert declared.among([1, 9]) == [1, 9]
    assert declared.among([1, 5, 9]) == [5, 9]  # who came first goes first


@pytest.mark.parametrize(("count", "kind"), [(2, RosterIncomplete), (4, RosterTooLarge)])
def test_a_roster_of_units_is_counted_in_nodes_and_told_in_units(count: int, kind: Any) -> None:
    eight = Hosting(max_units=8)
    with pytest.raises(kind) as refused:
        wait_for_roster(nodes(count), 20, timeout=0.1, hosting=eight, roster_may_grow=False)
    assert "20 clients, up to 8 on each of 3 nodes" in str(refused.value)
    assert f"num_clients={8 * count}" in str(refused.value)
    assert len(wait_for_roster(nodes(3), 20, timeout=0.1, hosting=eight)) == 3
