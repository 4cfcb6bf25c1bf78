"""The app trained in this process: it learns, and spends no more than its budget."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from fl_dp import PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app.in_process import InProcessGrid
from flwr.app import Context, RecordDict

from fl_dp.commands.new_app.template.private_app import client_app, server_app, task

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
CONFIG: dict[str, Any] = PYPROJECT["tool"]["flwr"]["app"]["config"]


def run_app(run_id: int, **changed: Any) -> None:
    """Run the app with some of its settings changed."""
    config = CONFIG | changed
    nodes = config["num-clients"] // config["clients-per-node"]
    node_configs = [{"partition-id": node, "num-partitions": nodes} for node in range(nodes)]
    grid = InProcessGrid(client_app.app, node_configs, run_id=run_id, run_config=config)
    server_app.app(grid, Context(run_id, 0, {}, RecordDict(), config))


def test_a_run_learns_and_spends_no_more_than_its_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The noise differs from run to run; at chance the accuracy would be 0.1."""
    run_app(1, **{"runs-folder": str(tmp_path)})
    output = capsys.readouterr().out
    assert float(output.split("Accuracy on public records: ")[1].split()[0]) > 0.5
    with PrivacyLedger.read(tmp_path / "1" / "ledger.db") as ledger:
        assert 0 < ledger.epsilon().best <= CONFIG["epsilon"]
        assert ledger.rounds_committed == CONFIG["num-server-rounds"]
    assert (tmp_path / "1" / "privacy.md").read_text("utf-8").startswith("# Privacy statement")


def test_a_second_run_on_one_ledger_is_refused_once_the_budget_is_spent(tmp_path: Path) -> None:
    """Two runs on the same people spend from one budget."""
    settings = {"runs-folder": str(tmp_path), "ledger": str(tmp_path / "for_good.db")}
    run_app(1, **settings, **{"num-server-rounds": 1})
    with pytest.raises(PrivacyBudgetExhausted):
        run_app(2, **settings, **{"num-server-rounds": 1})


def test_no_record_of_a_client_is_another_s_or_public() -> None:
    """Otherwise a client would be protected by less than its budget says."""
    clients = [task.load_client(client, CONFIG["num-clients"])[0] for client in range(3)]
    records = [row.numpy().tobytes() for part in (*clients, task.load_public()[0]) for row in part]
    assert len(set(records)) == len(records)
