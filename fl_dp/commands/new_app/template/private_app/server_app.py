"""The server: FedAvg with momentum, private from its first round on."""

import json
from pathlib import Path
from typing import Any

import torch
from fl_dp.clients import exchanged_arrays, trained_names
from fl_dp.model_arrays import set_arrays
from fl_dp.statement import privacy_statement, statement_markdown
from fl_dp.strategies import DPFedAvg
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from . import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train within a privacy budget, and write down what was promised and spent."""
    config: dict[str, Any] = dict(context.run_config)
    rounds = config["num-server-rounds"]
    # Absolute: Flower starts a ServerApp in another folder than its user's.
    folder = Path(config["runs-folder"]).expanduser() / str(context.run_id)
    folder.mkdir(mode=0o700, parents=True)

    # It plans the least noise with which all rounds fit the budget, and opens the ledger.
    strategy = DPFedAvg.with_budget(
        FedAvgM(
            server_learning_rate=config["server-learning-rate"],
            server_momentum=config["server-momentum"],
        ),
        epsilon=config["epsilon"],
        delta=config["delta"],
        rounds=rounds,
        num_clients=config["num-clients"],
        units_per_node=config["clients-per-node"],
        sampling_rate=config["sampling-rate"],
        clipping_norm=config["clipping-norm"],
        ledger=config["ledger"] or folder / "ledger.db",
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=exchanged_arrays(task.build_model()),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )

    torch.save(result.arrays.to_torch_state_dict(), folder / "model.pt")
    assert strategy.ledger is not None  # `with_budget` opened it
    statement = privacy_statement(strategy.ledger)
    (folder / "privacy.md").write_text(statement_markdown(statement), encoding="utf-8")
    (folder / "privacy.json").write_text(json.dumps(statement.to_dict(), indent=2) + "\n")

    *_, measured = result.evaluate_metrics_serverapp.values()
    print(f"Accuracy on public records: {measured['accuracy']:.3f}")
    print(f"Spent: {statement.guarantee}")
    print(f"Privacy statement, to read: {folder / 'privacy.md'}")
    print(f"Ledger, to verify: fl-dp ledger {strategy.ledger.location}")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure a released model on public records."""
    model = task.build_model()
    set_arrays(model, arrays.to_numpy_ndarrays(), trained_names(model))
    return MetricRecord({"accuracy": task.accuracy(model, task.load_public())})
