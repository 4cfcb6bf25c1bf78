"""The server: Flower's FedAdam, made private in one line."""

from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

from strategies import LoggingDPFedAvg, RegionSelection

from . import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how good the model is and what it cost."""
    config: dict[str, Any] = context.run_config
    strategy = FedAdam(eta=config["server-learning-rate"])
    strategy = LoggingDPFedAvg.with_budget(
        strategy,
        epsilon=config["epsilon"],
        rounds=config["num-server-rounds"],
        num_clients=config["num-hospitals"],
        clipping_norm=config["clipping-norm"],
        selection=RegionSelection(
            task.REGIONS,
            per_region=config["hospitals-per-region"],
            participation_cap=config["participation-cap"],
        ),
        ledger=_ledger(context),
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_weights()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({key: config[key] for key in ("learning-rate", "local-steps")}),
        evaluate_fn=evaluate,
    )
    *_, measured = result.evaluate_metrics_serverapp.values()
    print(f"Accuracy on public patients: {measured['accuracy']:.3f}")
    print(strategy.report())


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure a released model on public patients."""
    return MetricRecord({"accuracy": task.accuracy(arrays.to_numpy_ndarrays(), task.load_public())})


def _ledger(context: Context) -> Path:
    # Absolute: where Flower starts a ServerApp is not where its user stands.
    folder = Path(str(context.run_config["ledger-folder"])).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{context.run_id}.db"
