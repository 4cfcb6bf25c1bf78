"""The model and the data; nothing in this file knows of privacy."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Weights = NDArray[np.float64]
"""A logistic regression: shape (65, 10), 64 pixels and a constant by ten digits."""

Records = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Pixels and a constant, shape (records, 65), and labels, shape (records,)."""


def first_weights() -> Weights:
    """Return an untrained model."""
    return np.zeros((65, 10))


def load_client(client: int, num_clients: int) -> Records:
    """Return the records of one client, who is the privacy unit; client 0 is the first."""
    features, labels = _digits()
    private = np.arange(len(labels)) % 5 != 0
    return features[private][client::num_clients], labels[private][client::num_clients]


def load_public() -> Records:
    """Return every fifth record: public, and of no client."""
    features, labels = _digits()
    return features[::5], labels[::5]


def train(weights: Weights, records: Records, *, learning_rate: float, epochs: int) -> Weights:
    """Return what a model becomes by steps along the gradient of all records of one client."""
    features, labels = records
    for _ in range(epochs):
        scores = features @ weights
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(labels)), labels] -= 1.0
        weights = weights - learning_rate * features.T @ chances / len(labels)
    return weights


def accuracy(weights: Weights, records: Records) -> float:
    """Return the fraction of records whose label a model finds."""
    features, labels = records
    return float(np.mean((features @ weights).argmax(axis=1) == labels))


@cache
def _digits() -> Records:
    pixels, labels = load_digits(return_X_y=True)
    # Pixels are from 0 to 16, whoever wrote them.
    return np.column_stack([pixels / 16.0, np.ones(len(pixels))]), labels
