"""Local training by plain SGD, and evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fl_dp.clients.cohort import LocalTraining, UnitData, train_alone
from fl_dp.clients.per_record.index_ranges import IndicesInRange, require_labels
from fl_dp.model_modes import modes_back


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: on a client's few records threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_locally(
    model: nn.Module,
    features: NDArray[np.float32] | NDArray[np.int64] | Tensor,
    labels: NDArray[Any] | Tensor,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> None:
    """Train a model in place by SGD on the mean loss of mini-batches, see `plain_sgd`.

    The data move to the model's device. Without rows the model stays as it is. Each epoch visits
    every row once, in a new order; a smaller last batch counts like any other. A label that is no
    class, or a token not in the vocabulary, counts as the nearest one.

    Args:
        model: Returns to its mode (train or eval).
        features: Float32 `(n, *input_shape)`, or int64 tokens `(n, length)`.
        labels: Int64 `(n,)`, or float32 for numbers.
        learning_rate: Step size, at least 0.
        epochs: Passes over the data, at least 1.
        batch_size: Rows per step, at least 1.
        seed: Seed of the rows' order and of dropout; the global random state does not change.

    Raises:
        ValueError: If a number is out of range, or features and labels differ in length.
    """
    training = plain_sgd(learning_rate=learning_rate, epochs=epochs, batch_size=batch_size)
    data = UnitData(features=as_tensor(features), labels=as_tensor(labels), seed=seed)
    train_alone(model, data, training)


def plain_sgd(*, learning_rate: float, epochs: int, batch_size: int) -> LocalTraining:
    """SGD on the mean loss of mini-batches, see `loss_of`.

    Raises:
        ValueError: If a number is out of range.
    """
    if not (math.isfinite(learning_rate) and learning_rate >= 0):
        raise ValueError(f"learning_rate is {learning_rate}; write a finite number of at least 0")
    return LocalTraining(
        loss=loss_of,
        optimizer=partial(torch.optim.SGD, lr=learning_rate),
        epochs=epochs,
        batch_size=batch_size,
    )


def loss_of(outputs: Tensor, labels: Tensor, *, reduction: str = "none") -> Tensor:
    """The cross-entropy of classes in nats, or the squared error of numbers.

    Outputs are `(n, num_classes)`, `(n, 1)` for numbers; labels `(n,)`, integers for classes. The
    reduction "none" returns each row's loss, `(n,)`; "mean" their mean.
    """
    if labels.is_floating_point():
        return functional.mse_loss(outputs.squeeze(1), labels, reduction=reduction)
    return functional.cross_entropy(outputs, labels, reduction=reduction)


class SquaredError(nn.MSELoss):
    """Squared error of one output per record, `(n, 1)`, and labels that are numbers, `(n,)`."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the error, reduced as `reduction` says."""
        return super().forward(outputs.squeeze(1), labels)


def evaluate(
    model: nn.Module,
    features: NDArray[np.float32] | NDArray[np.int64] | Tensor,
    labels: NDArray[Any] | Tensor,
    batch_size: int = 2048,
    *,
    max_loss: float | None = None,
    label_range: tuple[float, float] | None = None,
    on_logits: Callable[[Tensor], object] | None = None,
) -> tuple[float, float]:
    """Measure a model, which stays unchanged and returns to its mode (train or eval).

    Args:
        model: Evaluated in eval mode on its own device.
        features: As for `train_locally`.
        labels: As for `train_locally`.
        batch_size: Rows per forward pass, at least 1; the result does not depend on it.
        max_loss: Bound to which each row's loss is clipped: one row moves the mean by at most that
            over `n`. A NaN loss counts as half of it.
        label_range: Range of labels that are numbers. A prediction outside it counts as its nearer
            end, a NaN as wrong by the whole range; without a range both count as they are.
        on_logits: Called with each batch's outputs, `(k, num_classes)`, in the rows' order.

    Returns:
        Mean loss (`loss_of`) and accuracy in [0, 1]; both NaN without rows. Numbers have no
        accuracy: their mean absolute error, in the labels' unit, replaces it.

    Raises:
        ValueError: If `batch_size` is below 1, or features and labels differ in length.
        IndexError: If a label is no class, or a token not in the vocabulary.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; write at least 1")
    if len(features) != len(labels):
        raise ValueError(
            f"{len(features)} rows of features but {len(labels)} labels; give one label a row"
        )
    num_rows = len(labels)
    if num_rows == 0:
        return math.nan, math.nan
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    x, y = as_tensor(features).to(device), as_tensor(labels).to(device)
    loss, measure = 0.0, 0.0
    with modes_back(model), torch.no_grad(), IndicesInRange():
        model.eval()
        for start in range(0, num_rows, batch_size):
            targets = y[start : start + batch_size]
            logits = model(x[start : start + batch_size].clone())
            require_labels(targets, logits.shape[1])
            if on_logits is not None:
                on_logits(logits)
            losses = loss_of(logits, targets)
            if max_loss is not None:
                losses = losses.nan_to_num(nan=max_loss / 2.0).clamp(max=max_loss)
            loss += float(losses.sum())
            if targets.is_floating_point():
                measure += float(_absolute_errors(logits, targets, label_range).sum())
            else:
                measure += int((logits.argmax(dim=1) == targets).sum())
    return loss / num_rows, measure / num_rows


def _absolute_errors(
    outputs: Tensor, labels: Tensor, label_range: tuple[float, float] | None
) -> Tensor:
    """The error of each prediction, `(n,)`; outputs are `(n, 1)`, labels `(n,)`."""
    predictions = outputs.squeeze(1)
    if label_range is None:
        return (predictions - labels).abs()
    low, high = label_range
    return (predictions.clamp(low, high) - labels).abs().nan_to_num(nan=high - low)


def evaluate_with_probabilities(
    model: nn.Module,
    features: NDArray[np.float32] | NDArray[np.int64],
    labels: NDArray[Any],
) -> tuple[float, float, NDArray[np.float64]]:
    """Measure a model on at least one row as `evaluate`; also return its predictions.

    Returns:
        Loss, accuracy, and the classes' probabilities, float64 `(n, num_classes)`; for numbers the
        mean absolute error replaces accuracy, and the predictions, `(n,)`, the probabilities.
    """
    batches: list[Tensor] = []
    loss, measure = evaluate(
        model, features, labels, on_logits=lambda logits: batches.append(logits.cpu())
    )
    outputs = torch.cat(batches).double()
    if np.issubdtype(labels.dtype, np.floating):
        return loss, measure, outputs.squeeze(1).numpy()
    return loss, measure, outputs.softmax(dim=1).numpy()


def as_tensor(values: NDArray[Any] | Tensor) -> Tensor:
    """Labels and tokens as int64, everything else as float32; a tensor as it is."""
    if isinstance(values, Tensor):
        return values
    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float32
    # torch warns about read-only arrays, so these are copied; others are shared, not copied.
    return torch.from_numpy(np.require(values, kind, ["C", "W"]))
