"""The server: FedAvg that is private from its first round on, within one budget."""

from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_dp.statement import privacy_statement, statement_markdown
from fl_dp.strategies import DPFedAvg

from . import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train within a privacy budget, and write down what was promised and spent."""
    config: dict[str, Any] = dict(context.run_config)
    rounds = config["num-server-rounds"]
    # Absolute: where Flower starts a ServerApp is not where its user stands.
    folder = Path(config["runs-folder"]).expanduser() / str(context.run_id)
    folder.mkdir(mode=0o700, parents=True)

    # These digits are public, so each run may have a ledger of its own. Real people need one
    # ledger for good: runs on the same people then spend from one budget.
    strategy = DPFedAvg.with_budget(
        FedAvg(),
        epsilon=config["epsilon"],
        rounds=rounds,
        num_clients=config["num-clients"],
        units_per_node=config["clients-per-node"],
        sampling_rate=config["sampling-rate"],
        clipping_norm=config["clipping-norm"],
        ledger=folder / "ledger.db",
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([task.first_weights()]),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )

    assert strategy.ledger is not None  # `with_budget` opened it
    statement = privacy_statement(strategy.ledger)
    (folder / "privacy.md").write_text(statement_markdown(statement), encoding="utf-8")
    *_, measured = result.evaluate_metrics_serverapp.values()
    print(f"Accuracy on public records: {measured['accuracy']:.3f}")
    print(f"Spent: {statement.guarantee}")
    print(f"Privacy statement: {folder / 'privacy.md'}")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure a released model on public records."""
    [weights] = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": task.accuracy(weights, task.load_public())})
