"""The Flower `ClientApp`: one client of a task, trained as the server's settings say."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.common.typing import NDArrays

from fl_dp.clients import numpy_client_app
from fl_dp.settings import SETTINGS_KEY, Settings
from fl_dp.tasks import (
    build_model,
    client_indices,
    get_arrays,
    load_dataset,
    set_arrays,
    train_locally,
)


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
        task, client = settings.task, settings.client
        dataset = load_dataset(task.name, data_dir=task.data_dir)
        parts = client_indices(
            task.name,
            num_clients=task.num_clients,
            kind=task.partition,
            seed=settings.seed,
            alpha=task.alpha,
            shards_per_client=task.shards_per_client,
            data_dir=task.data_dir,
        )
        if self.partition_id >= len(parts):
            return parameters, 1, {}
        rows = parts[self.partition_id]
        model = build_model(
            settings.model.name,
            input_shape=dataset.input_shape,
            num_classes=dataset.num_classes,
            hidden=settings.model.hidden,
            seed=settings.seed,
        )
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
