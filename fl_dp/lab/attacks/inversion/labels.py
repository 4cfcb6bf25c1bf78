"""Labels of a batch from the last layer's update alone: exact for one record, likely for a few.

References:
    Zhao et al. 2020, "iDLG: Improved Deep Leakage from Gradients".
    Wainakh et al. 2022, "User-Level Label Leakage from Gradients in Federated Learning".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from .observation import Observation


def recovered_labels(observation: Observation) -> Tensor:
    """Return the likeliest labels, int64 `(records,)`, in increasing order.

    The gradient of the last layer's bias is the mean of `p - onehot(label)`: of one record it is
    negative at the label alone. For several, first predictions are taken to be the same for all
    classes and one class to be absent. That is right for fewer records than classes under an
    untrained model, and a guess otherwise. It needs no scale, so clipping does not matter.

    Raises:
        ValueError: If the model does not end in a linear layer.
    """
    # Proportional to mean(onehot(label) - p), where p is taken to be the same for all records.
    evidence = _towards_each_class(observation)
    share = evidence - evidence.min()
    if not bool(share.sum() > 0.0):  # an update of zero: no class is likelier than another
        share = torch.ones_like(share)
    exact = (observation.records * share / share.sum()).numpy()
    counts = np.floor(exact).astype(np.int64)
    missing = observation.records - int(counts.sum())
    # Largest remainders; of one record this is the largest entry, as in iDLG.
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))


def num_classes(model: nn.Module) -> int:
    """Return how many classes a model tells apart.

    Raises:
        ValueError: If it does not end in a linear layer.
    """
    return _last_linear(model)[1].out_features


def _towards_each_class(observation: Observation) -> Tensor:
    """Return how far the update moves towards predicting each class, `(classes,)`."""
    name, _ = _last_linear(observation.model)
    parts = observation.parts()
    if f"{name}.bias" in parts:
        return parts[f"{name}.bias"]
    # Activations are not negative behind most activation functions: a row has its factor's sign.
    return parts[f"{name}.weight"].sum(1)


def _last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    layers = [
        (name, each) for name, each in model.named_modules() if list(each.parameters(recurse=False))
    ]
    name, last = layers[-1] if layers else ("", None)
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"labels are read from a linear layer at the end, and the model ends in "
            f"{type(last).__name__}"
        )
    return name, last
