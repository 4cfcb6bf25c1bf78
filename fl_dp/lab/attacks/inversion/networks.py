"""Networks that leave an adversary less to match: dropout, and statistics of the batch.

They are victims to attack. Batch statistics do not belong into private training: they mix records.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

NETWORKS = ("plain", "dropout", "batch_norm")
"""What `changed` knows."""

_DROPPED = 0.5


def changed(model: nn.Sequential, network: str) -> nn.Sequential:
    """Return a network with the same layers, and others in between.

    Args:
        model: Layers in order; they are shared with what is returned.
        network: `plain` changes nothing. `dropout` drops half of the activations, by coins that the
            adversary does not see. `batch_norm` normalises activations by the mean and deviation of
            their batch, which the adversary can only compute from its own guesses.

    Raises:
        ValueError: If there is no such network.
    """
    if network not in NETWORKS:
        raise ValueError(f"there is no network {network!r}: write one of {', '.join(NETWORKS)}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (name, layer) in enumerate(model.named_children()):
        last = number == len(model) - 1
        layers[name] = layer
        if network == "batch_norm" and isinstance(layer, nn.Linear) and not last:
            # No running statistics: the batch's own, in whatever mode.
            norm = nn.BatchNorm1d(layer.out_features, track_running_stats=False)
            layers[f"{name}_norm"] = norm
        if network == "dropout" and isinstance(layer, nn.ReLU):
            layers[f"{name}_dropout"] = nn.Dropout(_DROPPED)
    return nn.Sequential(layers)
