"""Gradient matching: a search for records whose simulated update is like the one that was seen.

References:
    Zhu et al. 2019, "Deep Leakage from Gradients".
    Zhao et al. 2020, "iDLG: Improved Deep Leakage from Gradients".
    Geiping et al. 2020, "Inverting Gradients: How easy is it to break privacy in federated
    learning?", equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from .analytic import num_classes, recovered_labels
from .attack import Attack, LocalTraining, Observation, PixelRange, Recovered, require_alike

_CERTAIN = 100.0  # a logit whose class has all of the probability
_LOWER_AT = (3 / 8, 5 / 8, 7 / 8)  # of all steps; each divides the step size by ten, as published


_FINITE = 1e-12  # an update of length zero has no direction


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Attack):
    """Minimises the squared distance of updates by L-BFGS: DLG, or iDLG with labels known before.

    Attributes:
        knows_labels: Whether labels are read from the last layer first (iDLG), or searched together
            with the records (DLG).
        steps: Most steps of L-BFGS, each with a line search.
        restarts: First guesses that are tried; the one whose update comes nearest is kept.
    """

    knows_labels: bool = False
    steps: int = 300
    restarts: int = 3

    def recover(
        self,
        observations: Sequence[Observation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return the records. See `Attack.recover`."""
        first = require_alike(observations)
        simulated = SimulatedUpdate(first.model, first.training)
        generator = torch.Generator().manual_seed(seed)
        shape = (first.records, *input_shape)
        recovered = []
        for observation in observations:
            tries = [
                self._search(observation, simulated, shape, pixels, generator)
                for _ in range(self.restarts)
            ]
            _, best = min(tries, key=lambda each: each[0])
            recovered.append(best)
        return recovered

    def _search(
        self,
        observation: Observation,
        simulated: SimulatedUpdate,
        shape: tuple[int, ...],
        pixels: PixelRange,
        generator: torch.Generator,
    ) -> tuple[float, Recovered]:
        """Return what one first guess leads to, and the distance that is left."""
        classes = num_classes(observation.model)
        guess = torch.rand(shape, generator=generator)
        logits = torch.randn((observation.records, classes), generator=generator)
        if self.knows_labels:
            logits = functional.one_hot(recovered_labels(observation), classes) * _CERTAIN
        seen = observation.update.float()
        size = seen.square().sum().clamp(min=torch.finfo(torch.float32).tiny)

        def distance() -> Tensor:
            targets = logits.softmax(1)
            update = simulated(pixels.from_unit(guess)[None], targets[None])[0]
            if observation.clipping_norm is not None:
                norm = torch.linalg.vector_norm(update)
                update = update * (observation.clipping_norm / norm).clamp(max=1.0)
            return (update - seen).square().sum() / size

        left = _minimised(distance, [guess] if self.knows_labels else [guess, logits], self.steps)
        image = guess.detach().nan_to_num(nan=0.5).clamp(0.0, 1.0)
        return left, Recovered(features=pixels.from_unit(image), labels=logits.argmax(1))


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(Attack):
    """Minimises `1 - cosine + total_variation * TV` by Adam on the signs of the gradient.

    Directions alone are compared, so that clipping does not matter. Labels are read from the last
    layer first. Observations and first guesses are searched side by side; each has its own Adam
    step in each coordinate, so that none depends on another.

    Attributes:
        steps: Of Adam.
        learning_rate: Of Adam, in pixels from 0 to 1; falls by ten at 3/8, 5/8 and 7/8 of the way.
        total_variation: Weight of the mean absolute difference of neighbouring pixels.
        restarts: First guesses that are tried; the one with the least loss is kept.
    """

    steps: int = 600
    learning_rate: float = 0.1
    total_variation: float = 1e-3
    restarts: int = 2

    def recover(
        self,
        observations: Sequence[Observation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """Return the records. See `Attack.recover`."""
        first = require_alike(observations)
        simulated = SimulatedUpdate(first.model, first.training)
        labels = torch.stack([recovered_labels(each) for each in observations])
        classes = num_classes(first.model)
        seen = torch.stack([each.update.float() for each in observations])
        seen, targets = (
            each.repeat_interleave(self.restarts, 0)
            for each in (seen, functional.one_hot(labels, classes).float())
        )
        generator = torch.Generator().manual_seed(seed)
        guess = torch.rand((len(seen), first.records, *input_shape), generator=generator)

        def loss(guess: Tensor) -> Tensor:
            updates = simulated(pixels.from_unit(guess), targets)
            cosine = functional.cosine_similarity(updates, seen, eps=_FINITE)
            return 1.0 - cosine + self.total_variation * total_variation(guess)

        self._search(guess, loss)
        with torch.no_grad():
            reached = loss(guess).nan_to_num(nan=torch.inf).view(-1, self.restarts)
        kept = guess.detach().view(-1, self.restarts, *guess.shape[1:])
        best = kept[torch.arange(len(kept)), reached.argmin(1)]
        return [
            Recovered(features=pixels.from_unit(image), labels=label)
            for image, label in zip(best, labels, strict=True)
        ]

    def _search(self, guess: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        """Change the guesses in place."""
        guess.requires_grad_(True)
        optimizer = torch.optim.Adam([guess], lr=self.learning_rate)
        lower_at = [int(share * self.steps) for share in _LOWER_AT]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, lower_at)
        for _ in range(self.steps):
            [gradient] = torch.autograd.grad(loss(guess).sum(), [guess])
            guess.grad = gradient.sign().nan_to_num(nan=0.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                guess.clamp_(0.0, 1.0)
        guess.requires_grad_(False)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, `(k,)` for `(k, ..., h, w)`."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    right = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + right


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


def _minimised(loss: Callable[[], Tensor], variables: Sequence[Tensor], steps: int) -> float:
    """Change variables in place to where a loss is small, and return it; infinite if it is NaN."""
    for each in variables:
        each.requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        variables,
        max_iter=steps,
        history_size=50,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
    )

    def closure() -> Tensor:
        value = loss()
        for each, gradient in zip(variables, torch.autograd.grad(value, variables), strict=True):
            each.grad = gradient
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch
    reached = float(loss().detach())
    return math.inf if math.isnan(reached) else reached
