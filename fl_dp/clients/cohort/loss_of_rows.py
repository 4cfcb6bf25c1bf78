"""The loss of many models: each parameter of all models is one tensor, with a model in each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_dp.clients.per_record.vmap_rules import NoOwnRules

from .image_layers import ImageLayers
from .layers import ModelLayers
from .local_training import LocalTraining, LossFn, UnitData, require_one_a_record
from .mask_coins import MaskCoins


@dataclass(frozen=True)
class CohortForm:
    """What clients of one cohort have in common: a record's features and label, rows of a step."""

    features: tuple[torch.dtype, tuple[int, ...]]
    labels: tuple[torch.dtype, tuple[int, ...]]
    width: int

    @classmethod
    def of(cls, unit: UnitData, training: LocalTraining) -> CohortForm:
        """The form of one client's step, which depends on its own data alone."""
        features, labels = (
            (tensor.dtype, tuple(tensor.shape[1:])) for tensor in (unit.features, unit.labels)
        )
        return cls(features, labels, training.width(len(unit.labels)))

    @property
    def of_images(self) -> bool:
        """Whether a record is an image `(C, H, W)`."""
        dtype, shape = self.features
        return len(shape) == 3 and dtype.is_floating_point


class LossOfRows:
    """The loss of one step of all rows.

    Attributes:
        coins_asked: Coins that one model's layers asked for, without coins.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFn,
        form: CohortForm,
        images: ImageLayers,
        coins: MaskCoins | None = None,
    ) -> None:
        """Take a module in training mode, which keeps its parameters, and the rows' coins."""
        self._model, self._loss, self._width = model, loss, form.width
        self._images = images if form.of_images else None
        self._layers = ModelLayers(coins, images)

    @property
    def coins_asked(self) -> int:
        """Coins that one model's dropout asked for, if it had none."""
        return self._layers.coins_asked

    def __call__(
        self, leaves: Mapping[str, Tensor], features: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        """The sum of all rows' losses; each has its own parameters, records and weights of these.

        Args:
            leaves: Parameters by name, `(rows, ...)`.
            features: Records `(rows, width, ...)`.
            labels: Their labels `(rows, width, ...)`.
            weights: Of a record in its row's mean, `(rows, width)`.
        """
        dim = 0
        if self._images is not None:
            features, dim = self._images.laid_out(features), self._images.dim
        numbers = torch.arange(len(weights), device=weights.device)
        of_each = torch.vmap(self._of_one, in_dims=(0, dim, 0, 0, 0), randomness="error")
        with NoOwnRules(), self._layers:
            losses: Tensor = of_each(dict(leaves), features, labels, weights, numbers)
        self._layers.number = None
        return losses.sum()

    def _of_one(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, own: Tensor, number: Tensor
    ) -> Tensor:
        self._layers.number = number
        losses = self._loss(functional_call(self._model, dict(parameters), (x,)), y)
        require_one_a_record(losses, self._width)
        return torch.dot(losses, own.to(losses.dtype))  # whose gradient is zero for what fills up
