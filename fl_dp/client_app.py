"""The Flower `ClientApp`: one client of a task, trained as the server's settings say."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays

from fl_dp.clients import numpy_client_app
from fl_dp.settings import SETTINGS_KEY, Settings
from fl_dp.tasks import get_arrays, set_arrays, train_locally
from fl_dp.workload import dataset_of, model_of, parts_of


class TaskClient(NumPyClient):
    """Trains on the node's own part of the task and returns nothing but the model.

    The number of examples is reported as 1: the strategy weights every client alike, and the true
    number is the client's own business.
    """

    def __init__(self, partition_id: int) -> None:
        """Be the client that holds part `partition_id` of the training data."""
        self.partition_id = partition_id

    def fit(
        self, parameters: NDArrays, config: dict[str, Any]
    ) -> tuple[NDArrays, int, dict[str, Any]]:
        """Train from `parameters` with the settings in the message."""
        settings = Settings.from_json(config[SETTINGS_KEY])
        parts = parts_of(settings)
        if self.partition_id >= len(parts):
            return parameters, 1, {}
        dataset, rows = dataset_of(settings), parts[self.partition_id]
        client, model = settings.client, model_of(settings)
        set_arrays(model, parameters)
        train_locally(
            model,
            dataset.features(rows),
            dataset.labels(rows),
            learning_rate=client.learning_rate,
            epochs=client.epochs,
            batch_size=client.batch_size,
            seed=_shuffling_seed(
                settings.seed, self.partition_id, int(config.get("server-round", 0))
            ),
        )
        return list(get_arrays(model).values()), 1, {}


def client_fn(context: Context) -> NumPyClient:
    """Return the client of this node.

    Raises:
        ValueError: If the node has no `partition-id` in its configuration.
    """
    if "partition-id" not in context.node_config:
        raise ValueError("start the SuperNode with --node-config 'partition-id=...'")
    return TaskClient(int(context.node_config["partition-id"]))


def _shuffling_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


app = numpy_client_app(client_fn)
