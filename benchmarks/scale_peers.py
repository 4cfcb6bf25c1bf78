"""A training over many clients with a peer, which `scale.py` starts in a process of its own.

    SCALE_TASK=... python benchmarks/scale_peers.py flower|pfl

The task is one JSON object, which workers inherit: `data`, an .npz file of `x`, `(rows, 64)`, and
`y`; `clients`, `cohort`, `rounds`, `records`, `epochs`, `learning_rate`; `noise_multiplier` (pfl),
`processors` (Flower); and `progress`, a file that gets a line per round.
All clients have `records` rows, from a place that follows from their number.
"""

from __future__ import annotations

import copyreg
import importlib
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

TASK: dict[str, Any] = json.loads(os.environ["SCALE_TASK"])


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All records, read once a process."""
    with np.load(TASK["data"]) as data:
        return torch.from_numpy(data["x"]), torch.from_numpy(data["y"])


def rows_of(client: int) -> tuple[Tensor, Tensor]:
    """The records of one client."""
    x, y = digits()
    rows = (client * TASK["records"] + np.arange(TASK["records"])) % len(y)
    return x[rows], y[rows]


def note_a_round() -> None:
    """Tell the starter that one more round is done."""
    with Path(TASK["progress"]).open("a", encoding="utf-8") as progress:
        progress.write("round\n")


def flower() -> None:
    """Train with `FedAvg` on Flower's simulation engine: one virtual node a client."""
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from own_ray import own_ray

    server = ServerApp()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round:
            note_a_round()
        return MetricRecord()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=TASK["cohort"] / TASK["clients"],
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=TASK["clients"],
        )
        start = ArrayRecord(nn.Linear(64, 10).state_dict())
        strategy.start(grid, start, num_rounds=TASK["rounds"], evaluate_fn=evaluate)

    # The app goes to workers by its name, as under `flwr run`, instead of with every message.
    copyreg.pickle(ClientApp, lambda _: (load_app, ()))
    with own_ray():
        run_simulation(
            server,
            load_app(),
            TASK["clients"],
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": TASK["processors"]},
            },
        )


def load_app(folder: str = str(Path(__file__).parent)) -> Any:
    """The client's app, made once a worker."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("scale_peers").flower_app()


def flower_app() -> Any:
    """An app that trains the model that it is sent."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = nn.Linear(64, 10)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        x, y = rows_of(int(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=TASK["learning_rate"])
        for _ in range(TASK["epochs"]):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
        content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
        content["metrics"] = MetricRecord({"num-examples": len(y)})
        return Message(content, reply_to=message)

    return app


def pfl() -> None:
    """Train with pfl-research's `FederatedAveraging` and its central Gaussian mechanism."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
    from pfl_units import with_loss

    class Progress(TrainingProcessCallback[Any]):  # type: ignore[misc]  # pfl is not installed here
        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            note_a_round()
            return False, Metrics()

    network = with_loss(nn.Linear(64, 10))
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    # A range: the sampler draws from it without a list of all clients.
    sampler = get_user_sampler("random", range(TASK["clients"]))
    dataset = FederatedDataset(lambda client: PyTorchTensorDataset(rows_of(client)), sampler)
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, TASK["noise_multiplier"]))
    FederatedAveraging().run(
        backend=SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=[mechanism]
        ),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=TASK["rounds"],
            evaluation_frequency=TASK["rounds"] + 1,
            train_cohort_size=TASK["cohort"],
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=TASK["records"],
            local_num_epochs=TASK["epochs"],
            local_learning_rate=TASK["learning_rate"],
        ),
        callbacks=[Progress()],
    )


PEERS: dict[str, Callable[[], None]] = {"flower": flower, "pfl": pfl}

if __name__ == "__main__":
    PEERS[sys.argv[1]]()
