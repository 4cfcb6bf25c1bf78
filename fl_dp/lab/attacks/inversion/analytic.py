"""Analytic inversion: linear layers reveal their inputs and labels, without a search.

For `y = W x + b` the gradients of one record are `dW = g x^T` and `db = g`. So each row gives
`x = dW_i / db_i`. All rows give the least-squares solution: exact without noise, else it averages
noise over the rows. The last layer's bias reveals the labels likewise: exactly for one record,
likely for a few.

References:
    Aono et al. 2017, "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption", 3.
    Geiping et al. 2020, "Inverting Gradients", proposition 3.1.
    Zhao et al. 2020, "iDLG: Improved Deep Leakage from Gradients".
    Wainakh et al. 2022, "User-Level Label Leakage from Gradients in Federated Learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .inversion_attack import Attack, PixelRange, Recovered, RoundObservation


@dataclass(frozen=True)
class AnalyticInversion(Attack):
    """Divides the first linear layer's update by its bias's: exact for one record and one step.

    For several records, or a sum of clients, it repeats a weighted mean.
    """

    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """The inputs. See `Attack.recover`; `seed` is not used.

        Raises:
            ValueError: If the first layer with parameters is not linear with a bias.
        """
        del seed
        return [_inverted(observation, input_shape, pixels) for observation in observations]


def _inverted(
    observation: RoundObservation, input_shape: tuple[int, ...], pixels: PixelRange
) -> Recovered:
    name = first_linear(observation.model)
    parts = observation.parts()
    weight, bias = parts[f"{name}.weight"], parts[f"{name}.bias"]
    squares = bias.square().sum()
    # A layer without any gradient says nothing: the middle of the range is as good as any guess.
    image = torch.full_like(weight[0], torch.nan)
    if squares > 0.0:
        image = bias @ weight / squares
    inside = pixels.to_unit(image.float().view(1, *input_shape)).nan_to_num(nan=0.5).clamp(0.0, 1.0)
    features = pixels.from_unit(inside)
    return Recovered(
        features=features.expand(observation.records, *input_shape).clone(),
        labels=recovered_labels(observation),
    )


def first_linear(model: nn.Module) -> str:
    """The name of the first layer with parameters, which reads the input.

    Raises:
        ValueError: If it is not linear with a bias.
    """
    name: str
    for name, layer in model.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if own and not (isinstance(layer, nn.Linear) and "bias" in own):
            break
        if own:
            return name
    raise ValueError(
        "the analytic inversion needs a model whose first layer is linear with a bias, such as "
        "model=mlp or model=logistic: leave it out"
    )


def recovered_labels(observation: RoundObservation) -> Tensor:
    """The likeliest labels, int64 `(records,)`, in increasing order.

    The gradient of the last layer's bias is the mean of `p - onehot(label)`: for one record
    negative at the label alone. For several, equal first predictions and one absent class are
    supposed: right for fewer records than classes under an untrained model, else a guess. Scale,
    and so clipping, does not matter.

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
    """A model's number of classes.

    Raises:
        ValueError: If it does not end in a linear layer.
    """
    return _last_linear(model)[1].out_features


def _towards_each_class(observation: RoundObservation) -> Tensor:
    """Return how far the update moves towards each class, `(classes,)`."""
    name, _ = _last_linear(observation.model)
    parts = observation.parts()
    if f"{name}.bias" in parts:
        return parts[f"{name}.bias"]
    # Activations are not negative behind most activation functions: a row has its factor's sign.
    return parts[f"{name}.weight"].sum(1)


def _last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    name: str = ""
    last: nn.Module | None = None
    for layer_name, layer in model.named_modules():
        if list(layer.parameters(recurse=False)):
            name, last = layer_name, layer
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"labels are read from a linear layer at the end, and the model ends in "
            f"{type(last).__name__}"
        )
    return name, last
