"""The task: is a tumour benign? Logistic regression in numpy on data that scikit-learn has."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

REGIONS = ("north", "east", "south", "west")

Weights = list[NDArray[np.float32]]
Patients = tuple[NDArray[np.float32], NDArray[np.float32]]


def region_of(hospital: int) -> str:
    """Return where a hospital stands, as its address says: two in five are in the north."""
    return REGIONS[max(hospital % 5 - 1, 0)]


def load_public() -> Patients:
    """Return the patients that were published: the server measures accuracy on them."""
    features, labels, public = _load()
    return features[public], labels[public]


def load_hospital(hospital: int, num_hospitals: int) -> Patients:
    """Return the patients of one hospital, about ten."""
    features, labels, public = _load()
    rows = np.flatnonzero(~public)[hospital::num_hospitals]
    return features[rows], labels[rows]


def initial_weights() -> Weights:
    """Return a model that knows nothing: one weight a feature, and a bias."""
    return [np.zeros(30, np.float32), np.zeros(1, np.float32)]


def train(weights: Weights, patients: Patients, *, learning_rate: float, steps: int) -> Weights:
    """Return the weights after some steps of gradient descent on all patients."""
    features, labels = patients
    coefficients, bias = (array.copy() for array in weights)
    for _ in range(steps):
        error = _predict([coefficients, bias], features) - labels
        coefficients -= learning_rate * features.T @ error / len(labels)
        bias -= learning_rate * error.mean()
    return [coefficients, bias]


def accuracy(weights: Weights, patients: Patients) -> float:
    """Return the fraction of patients that are told right."""
    features, labels = patients
    return float(np.mean((_predict(weights, features) > 0.5) == labels))


def _predict(weights: Weights, features: NDArray[np.float32]) -> NDArray[np.float32]:
    coefficients, bias = weights
    predicted: NDArray[np.float32] = 1.0 / (1.0 + np.exp(-(features @ coefficients + bias)))
    return predicted


@cache
def _load() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    features, labels = load_breast_cancer(return_X_y=True)
    public = np.arange(len(labels)) % 4 == 0
    # Scaled by public patients alone: means of the others would be a release of their own.
    scaled = (features - features[public].mean(axis=0)) / features[public].std(axis=0)
    return scaled.astype(np.float32), labels.astype(np.float32), public
