"""Arrays that a server and its clients exchange of a torch module: what is trained, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import nn

from fl_dp.model_arrays import get_arrays
from fl_dp.model_arrays import trained_names as trained_names  # an export of this package


def exchanged_arrays(model: nn.Module) -> ArrayRecord:
    """A server's first arrays: what clients train (`trained_names`), and nothing else.

    Frozen parameters and buffers don't travel: server and clients build the same model.
    """
    return ArrayRecord(
        {name: Array(values) for name, values in get_arrays(model, trained_names(model)).items()}
    )


def trained_arrays(
    names: Sequence[str], received: Sequence[NDArray[Any]], trained: Mapping[str, torch.Tensor]
) -> list[NDArray[Any]]:
    """A client's reply: trained parameters, and all other arrays as they came.

    Args:
        names: See `sent_names`.
        received: Received arrays, in the same order.
        trained: The trained parameters by name, made of noised sums alone.
    """
    arrays = []
    for name, array in zip(names, received, strict=True):
        arrays.append(_numpy(trained[name]) if name in trained else np.asarray(array))
    return arrays


def _numpy(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().numpy())
