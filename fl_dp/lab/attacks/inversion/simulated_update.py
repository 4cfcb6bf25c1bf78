"""A client's update as a differentiable function of its records, which matching attacks invert."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from .observation import LocalTraining


class SimulatedUpdate:
    """The adversary's copy of what a client computes from records that it guesses.

    Several steps are unrolled, so that the gradient with respect to the records goes through all of
    them (Geiping et al. 2020, section 6). The adversary knows neither the order of the records nor
    dropout's masks: it takes records in their order, and the model in evaluation mode.
    """

    def __init__(self, model: nn.Module, training: LocalTraining) -> None:
        """Copy the public model's values; the model itself is not changed.

        Args:
            model: With logits `(n, classes)`.
            training: Of the client.
        """
        self._model = model
        self._training = training
        named = list(model.named_parameters())
        self._start = {name: each.detach() for name, each in named if each.requires_grad}
        self._fixed = {name: each.detach() for name, each in named if not each.requires_grad}
        self._fixed |= {name: each.detach() for name, each in model.named_buffers()}

    def __call__(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the updates of several clients, each from the same model.

        Args:
            features: `(clients, n, *input_shape)`.
            targets: Probabilities of the labels, `(clients, n, classes)`.

        Returns:
            `(clients, d)`, in the order of `Observation.update`.
        """
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            updates: Tensor = torch.vmap(self._of_one)(features, targets)
        finally:
            for module, was_training in modes:
                module.training = was_training
        return updates

    def _of_one(self, features: Tensor, targets: Tensor) -> Tensor:
        gradient = torch.func.grad(self._loss)
        current = self._start
        # The sum of gradients: a difference of float32 models would be rounded.
        moved = {name: torch.zeros_like(each) for name, each in current.items()}
        for _ in range(self._training.epochs):
            for rows in self._training.batches(len(features)):
                gradients = gradient(current, features[rows], targets[rows])
                moved = {name: moved[name] - gradients[name] for name in moved}
                current = {
                    name: each + self._training.learning_rate * moved[name]
                    for name, each in self._start.items()
                }
        flat = torch.cat([each.reshape(-1) for each in moved.values()])
        return self._training.learning_rate * flat

    def _loss(self, parameters: dict[str, Tensor], features: Tensor, targets: Tensor) -> Tensor:
        logits = functional_call(self._model, parameters | self._fixed, (features,))
        return functional.cross_entropy(logits, targets)
