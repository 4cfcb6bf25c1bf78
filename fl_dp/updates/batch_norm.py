"""Running statistics of BatchNorms: found in a model, and repaired where they were averaged.

They are averages, not parameters. A private training would clip and noise them, which ruins the
model without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from .arrays import array_of, read

RUNNING_VARIANCE = "running_var"
"""Ending of the name that PyTorch gives to a BatchNorm's running variance."""

_ENDINGS = ("running_mean", RUNNING_VARIANCE, "moving_mean", "moving_variance")  # PyTorch's, Keras'


def running_statistics(model: ArrayRecord) -> list[str]:
    """Names of arrays that hold running means and variances, in the model's order.

    Arrays without names, as in a list, are recognised by their order: PyTorch counts batches after
    a variance, and a fresh layer of Keras is ones, zeros, zeros, ones.

    Raises:
        ValueError: An array can't be read.
    """
    names = list(model)
    if not all(name.isdecimal() for name in names):
        return [name for name in names if name.endswith(_ENDINGS)]
    arrays = [read(array)[1] for array in model.values()]
    statistics: list[str] = []
    for index in range(1, len(arrays)):
        mean, variance = arrays[index - 1 : index + 1]
        if variance.ndim != 1 or mean.shape != variance.shape:
            continue
        following = arrays[index + 1] if index + 1 < len(arrays) else variance
        counted = following.shape == () and np.issubdtype(following.dtype, np.integer)
        fresh = _is_fresh_layer(arrays[max(0, index - 3) : index + 1])
        if fresh or (counted and (variance > 0).all()):
            statistics += names[index - 1 : index + 1]
    return statistics


def _is_fresh_layer(layer: Sequence[NDArray[Any]]) -> bool:
    """Whether arrays are those of a fresh BatchNorm of Keras."""
    if len(layer) != 4 or any(array.shape != layer[-1].shape for array in layer):
        return False
    return all((array == value).all() for array, value in zip(layer, (1, 0, 0, 1), strict=True))


def with_sound_variances(model: ArrayRecord) -> ArrayRecord:
    """A model whose running variances are at least zero.

    A server optimizer with momentum can make an average of variances negative: the model then
    returns NaN.
    """
    repaired = {}
    for name, array in model.items():
        if name.endswith(RUNNING_VARIANCE):
            form, values = read(array)
            if np.issubdtype(form.dtype, np.floating) and (values < 0.0).any():
                repaired[name] = array_of(np.maximum(values, 0.0), form)
    if not repaired:
        return model
    return ArrayRecord({name: repaired.get(name, array) for name, array in model.items()})
