"""Running statistics of BatchNorms: found in a model, and repaired where they were averaged.

They are averages, not parameters. A private training would clip them and add noise to them like all
else, which ruins the model without an error.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from .arrays import array_of, read

RUNNING_VARIANCE = "running_var"
"""Ending of the name that PyTorch gives to a BatchNorm's running variance."""

_ENDINGS = ("running_mean", RUNNING_VARIANCE, "moving_mean", "moving_variance")  # PyTorch's, Keras'


def running_statistics(model: ArrayRecord) -> list[str]:
    """Return the names of arrays that hold running means and variances, in the model's order.

    Arrays without names, as a list of them becomes, are told by their places: PyTorch counts
    batches behind a variance, and a fresh layer of Keras is ones, zeros, zeros, ones.

    Raises:
        ValueError: If an array can't be read.
    """
    names = list(model)
    if not all(name.isdecimal() for name in names):
        return [name for name in names if name.endswith(_ENDINGS)]
    arrays = [read(array)[1] for array in model.values()]
    found: list[str] = []
    for place in range(1, len(arrays)):
        mean, variance = arrays[place - 1 : place + 1]
        if variance.ndim != 1 or mean.shape != variance.shape:
            continue
        behind = arrays[place + 1] if place + 1 < len(arrays) else variance
        counted = behind.shape == () and np.issubdtype(behind.dtype, np.integer)
        layer = arrays[max(0, place - 3) : place + 1]
        fresh = [each.shape for each in layer] == [variance.shape] * 4 and all(
            (each == value).all() for each, value in zip(layer, (1, 0, 0, 1), strict=True)
        )
        if fresh or (counted and (variance > 0).all()):
            found += names[place - 1 : place + 1]
    return found


def with_sound_variances(model: ArrayRecord) -> ArrayRecord:
    """Return a model whose running variances are at least zero.

    A server optimizer with momentum can make an average of variances negative, and the model then
    returns NaN.

    Args:
        model: Under PyTorch's names; itself unchanged, and returned if nothing is negative.
    """
    mended = {}
    for name, array in model.items():
        if name.endswith(RUNNING_VARIANCE):
            form, values = read(array)
            if np.issubdtype(form.dtype, np.floating) and (values < 0.0).any():
                mended[name] = array_of(np.maximum(values, 0.0), form)
    if not mended:
        return model
    return ArrayRecord({name: mended.get(name, array) for name, array in model.items()})
