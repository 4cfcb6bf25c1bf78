"""The analytic inversion: a linear layer with a bias gives its input away, without any search.

For `y = W x + b` the gradients of one record are `dW = g x^T` and `db = g`, so that each row has
`x = dW_i / db_i`. All rows together give the least-squares solution, which is exact without noise
and averages noise over the rows.

References:
    Aono et al. 2017, "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption", 3.
    Geiping et al. 2020, "Inverting Gradients", proposition 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .attack import Attack, PixelRange, Recovered
from .labels import recovered_labels
from .observation import Observation


@dataclass(frozen=True)
class AnalyticInversion(Attack):
    """Divides the first linear layer's update by its bias's: exact for one record and one step.

    Of several records, or of several clients' sum, it gives a weighted mean, once for each.
    """

    def recover(
        self,
        observations: Sequence[Observation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return the inputs. See `Attack.recover`; `seed` is not used.

        Raises:
            ValueError: If the first layer with parameters is not linear with a bias.
        """
        del seed
        return [_inverted(each, input_shape, pixels) for each in observations]


def _inverted(
    observation: Observation, input_shape: tuple[int, ...], pixels: PixelRange
) -> Recovered:
    name = first_linear(observation.model)
    parts = observation.parts()
    weight, bias = parts[f"{name}.weight"], parts[f"{name}.bias"]
    squares = bias.square().sum()
    # A layer without any gradient says nothing: the middle of the range is as good as any guess.
    image = bias @ weight / squares if squares > 0.0 else torch.full_like(weight[0], torch.nan)
    inside = pixels.to_unit(image.float().view(1, *input_shape)).nan_to_num(nan=0.5).clamp(0.0, 1.0)
    features = pixels.from_unit(inside)
    return Recovered(
        features=features.expand(observation.records, *input_shape).clone(),
        labels=recovered_labels(observation),
    )


def first_linear(model: nn.Module) -> str:
    """Return the name of the first layer with parameters, which reads the input itself.

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
