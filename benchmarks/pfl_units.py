"""A cohort's training with pfl-research, in an environment of its own: see `peers.py`.

The units' data are an .npz file of `x`, `(units, rows, 1, 28, 28)`, and `y`, `(units, rows)`.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from small_cnn import small_cnn
from torch.nn import functional


def with_loss(model: Any) -> Any:
    """Give a model the two methods that pfl needs; the metrics are not used."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model.train()(x), y)

    def metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(loss(x, y)), 1)}

    model.loss, model.metrics = loss, metrics
    return model


def main() -> None:
    """Train the cohort once a line."""
    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    with np.load(task["data"]) as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    units = [PyTorchTensorDataset((x[unit], y[unit])) for unit in range(len(x))]
    network = with_loss(small_cnn())
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    sampler = itertools.cycle(range(len(units)))
    dataset = FederatedDataset(lambda unit: units[unit], lambda: next(sampler))
    clipping = NormClippingOnly(2, task["clipping_norm"])
    backend = SimulatedBackend(
        training_data=dataset,
        val_data=dataset,
        postprocessors=[CentrallyAppliedPrivacyMechanism(clipping)],
    )
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=len(units),
        population=Population.TRAIN,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=0,
            train_cohort_size=len(units),
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=task["batch_size"],
            local_num_epochs=1,
            local_learning_rate=task["learning_rate"],
        ),
        seed=0,
    )
    algorithm = FederatedAveraging()
    print("ready", flush=True)
    for _ in sys.stdin:
        statistics, _ = backend.gather_results(model, algorithm, central_context=context)
        total = sum(float(tensor.norm()) ** 2 for _, tensor in statistics.items()) ** 0.5
        print(total, flush=True)


if __name__ == "__main__":
    main()
