"""The task: your model and your data go here. Nothing in this file knows of privacy.

As generated: handwritten digits, which scikit-learn ships, and a logistic regression.
"""

from functools import cache
from typing import TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

Records: TypeAlias = tuple[Tensor, Tensor]
"""Features of shape (records, 64) and labels of shape (records,)."""


def build_model() -> nn.Module:
    """Return an untrained model.

    Yours must have no batch statistics (BatchNorm): they would reveal single records.
    """
    return nn.Linear(64, 10)


def load_client(client: int, num_clients: int) -> Records:
    """Return the records of one client, who is the privacy unit.

    Yours are read on the client's own machine. Scale them by public constants.

    Args:
        client: Index of the client, from 0 to `num_clients - 1`.
        num_clients: Number of clients.
    """
    features, labels = _digits()
    mine = torch.arange(len(labels)) % 5 != 0  # the rest is public
    return features[mine][client::num_clients], labels[mine][client::num_clients]


def load_public() -> Records:
    """Return records that are public and belong to no client: the server measures on them."""
    features, labels = _digits()
    return features[::5], labels[::5]


def train(model: nn.Module, records: Records, *, learning_rate: float, epochs: int) -> None:
    """Train a model on the records of one client, in place."""
    features, labels = records
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, records: Records) -> float:
    """Return the fraction of records whose label the model predicts."""
    features, labels = records
    return float((model(features).argmax(dim=1) == labels).float().mean())


@cache
def _digits() -> Records:
    features, labels = load_digits(return_X_y=True)
    # Pixels are from 0 to 16 for every writer.
    return torch.tensor(features / 16.0, dtype=torch.float32), torch.tensor(labels)
