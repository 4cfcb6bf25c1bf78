"""`privacy=buffered`: from settings to a plan, and a whole run with slow nodes and a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.app import server
from fl_dp.app.checkpoints import save_checkpoint
from fl_dp.app.compose import compose_settings
from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.planning import make_plan, make_selection
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.client_app import app
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.clients.owner.node_privacy import simulated_nodes
from fl_dp.ledger import PrivacyLedger
from fl_dp.strategies import BufferedSelection, Checkpoint

BUFFERED = ("privacy=buffered", "task.num_clients=40", "selection.sampling_rate=0.1", "rounds=20")


def test_settings_say_who_is_asked_and_what_it_is_charged() -> None:
    settings = compose_settings(
        [
            *BUFFERED,
            "selection.participation_cap=4",
            "selection.concurrency=9",
            "selection.max_staleness=3",
            "selection.staleness_power=1",
        ]
    )
    selection = make_selection(settings)
    assert isinstance(selection, BufferedSelection)
    assert selection.concurrency == 9 and selection.weight(3) == 0.25 and selection.weight(4) == 0.0
    plan = make_plan(settings)
    assert (
        plan.sampling == BufferedSampling(cohort=4, participation_cap=4) and plan.denominator == 4
    )
    assert plan.charged_rounds == 4


def test_delays_need_a_clock_that_does_not_wait() -> None:
    with pytest.raises(ValueError, match=r"simulation\.engine=in_process"):
        compose_settings(["simulation.delay_spread=1"])


def test_a_run_with_slow_nodes_is_stopped_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [
        "privacy=buffered",
        "task.num_clients=8",
        "selection.sampling_rate=0.25",
        "rounds=4",
        "selection.participation_cap=3",
        "simulation.engine=in_process",
        "client.epochs=1",
        "simulation.delay_spread=1",
        f"output_dir={tmp_path}",
        "run_name=slow",
    ]
    nodes = [{PARTITION_ID_KEY: node, "num-partitions": 8} for node in range(8)]

    def stopped(checkpoint: Checkpoint, path: Path) -> None:
        save_checkpoint(checkpoint, path)
        if checkpoint.server_round == 2:
            raise KeyboardInterrupt

    with simulated_nodes():
        with monkeypatch.context() as patched:
            patched.setattr(server, "save_checkpoint", stopped)
            with pytest.raises(KeyboardInterrupt):
                train(InProcessGrid(app, nodes), compose_settings(overrides), run_id="1")
        folder = RunFolder(tmp_path / "slow")
        resumed = compose_settings([f"resume={folder.path}"])
        train(InProcessGrid(app, nodes), resumed, run_id="2")
    metrics = folder.read_metrics()
    assert [line["round"] for line in metrics] == [0, 1, 2, 3, 4]
    assert metrics[2]["virtual_time"] > metrics[1]["virtual_time"] > 0.0
    with PrivacyLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_committed == ledger.rounds_spent == 4
        assert max(ledger.participations.values()) <= 3
        folds = [entry.fields for entry in ledger.entries if entry.kind == "fold"]
        assert sum(len(fold["units"]) for fold in folds) == 8
    assert "in buffered releases" in folder.read_statement()["sampling"]
