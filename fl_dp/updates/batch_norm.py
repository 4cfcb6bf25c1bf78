"""Repair of a released model's BatchNorms: their running variances must not be negative."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from .arrays import array_of, read

RUNNING_VARIANCE = "running_var"
"""Ending of the name that PyTorch gives to a BatchNorm's running variance."""


def with_sound_variances(model: ArrayRecord) -> ArrayRecord:
    """Return a model whose running variances are at least zero.

    A BatchNorm's running statistics are floating-point numbers like any other: they are clipped,
    get noise and are released with the rest. Noise can make a variance negative, and the model then
    returns NaN. Only what is released is looked at, so setting it to zero costs no privacy.

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
