"""Gradient matching: a search for records whose simulated update is like the observed one.

References:
    Zhu et al. 2019, "Deep Leakage from Gradients".
    Zhao et al. 2020, "iDLG: Improved Deep Leakage from Gradients".
    Geiping et al. 2020, "Inverting Gradients: How easy is it to break privacy in federated
        learning?", equation 4.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from .analytic import num_classes, recovered_labels
from .inversion_attack import (
    Attack,
    KnownTraining,
    PixelRange,
    Recovered,
    RoundObservation,
    require_alike,
)

_CERTAIN = 100.0  # a logit whose class has all of the probability
_LOWER_AT = (3 / 8, 5 / 8, 7 / 8)  # of all steps; each divides the step size by ten, as published
_FINITE = 1e-12  # an update of length zero has no direction


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Attack):
    """Minimises the squared distance of updates by L-BFGS: DLG, or iDLG with known labels.

    Attributes:
        knows_labels: Whether labels are first read from the last layer (iDLG), or searched with
            the records (DLG).
        steps: Most steps of L-BFGS, each with a line search.
        restarts: Number of first guesses; the one whose update comes nearest wins.
    """

    knows_labels: bool = False
    steps: int = 300
    restarts: int = 3

    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """The records. See `Attack.recover`."""
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
            _, best = min(tries, key=operator.itemgetter(0))
            recovered.append(best)
        return recovered

    def _search(
        self,
        observation: RoundObservation,
        simulated: SimulatedUpdate,
        shape: tuple[int, ...],
        pixels: PixelRange,
        generator: torch.Generator,
    ) -> tuple[float, Recovered]:
        """The smallest distance from a first guess, and its records."""
        classes = num_classes(observation.model)
        guess = torch.rand(shape, generator=generator)
        logits = torch.randn((observation.records, classes), generator=generator)
        if self.knows_labels:
            logits = functional.one_hot(recovered_labels(observation), classes) * _CERTAIN
        observed = observation.update.float()
        size = observed.square().sum().clamp(min=torch.finfo(torch.float32).tiny)

        def distance() -> Tensor:
            targets = logits.softmax(1)
            update = simulated(pixels.from_unit(guess)[None], targets[None])[0]
            if observation.clipping_norm is not None:
                norm = torch.linalg.vector_norm(update)
                update = update * (observation.clipping_norm / norm).clamp(max=1.0)
            return (update - observed).square().sum() / size

        variables = [guess] if self.knows_labels else [guess, logits]
        remaining = _minimised(distance, variables, self.steps)
        image = guess.detach().nan_to_num(nan=0.5).clamp(0.0, 1.0)
        return remaining, Recovered(features=pixels.from_unit(image), labels=logits.argmax(1))


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(Attack):
    """Minimises `1 - cosine + total_variation * TV` by Adam on the signs of the gradient.

    Only directions are compared, so clipping does not matter. Labels are first read from the last
    layer. Observations and guesses are searched side by side, independently.

    Attributes:
        steps: Steps of Adam.
        learning_rate: Step size in pixels from 0 to 1; divided by ten at 3/8, 5/8 and 7/8 of the
            steps.
        total_variation: Weight of the mean absolute difference of neighbouring pixels.
        restarts: Number of first guesses; the one with the least loss wins.
    """

    steps: int = 600
    learning_rate: float = 0.1
    total_variation: float = 1e-3
    restarts: int = 2

    def recover(
        self,
        observations: Sequence[RoundObservation],
        *,
        input_shape: tuple[int, ...],
        pixels: PixelRange,
        seed: int,
    ) -> list[Recovered]:
        """The records. See `Attack.recover`."""
        first = require_alike(observations)
        simulated = SimulatedUpdate(first.model, first.training)
        labels = torch.stack([recovered_labels(observation) for observation in observations])
        one_hot = functional.one_hot(labels, num_classes(first.model)).float()
        targets = one_hot.repeat_interleave(self.restarts, 0)
        updates = torch.stack([observation.update.float() for observation in observations])
        observed = updates.repeat_interleave(self.restarts, 0)
        generator = torch.Generator().manual_seed(seed)
        guess = torch.rand((len(observed), first.records, *input_shape), generator=generator)

        def loss(guess: Tensor) -> Tensor:
            updates = simulated(pixels.from_unit(guess), targets)
            cosine = functional.cosine_similarity(updates, observed, eps=_FINITE)
            return 1.0 - cosine + self.total_variation * total_variation(guess)

        self._search(guess, loss)
        with torch.no_grad():
            losses = loss(guess).nan_to_num(nan=torch.inf).view(-1, self.restarts)
        guesses = guess.detach().view(-1, self.restarts, *guess.shape[1:])
        best = guesses[torch.arange(len(guesses)), losses.argmin(1)]
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
    """The mean absolute difference of neighbouring pixels, `(k,)` for `(k, ..., h, w)`."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    right = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + right


class SimulatedUpdate:
    """The adversary's copy of a client's computation, from guessed records.

    Steps are unrolled: the gradient with respect to the records goes through all of them (Geiping
    et al. 2020, section 6). The adversary knows neither the records' order nor dropout's masks: it
    takes the given order, and the model in evaluation mode.
    """

    def __init__(self, model: nn.Module, training: KnownTraining) -> None:
        """Take the public values of a model with logits `(n, classes)`; it is not changed."""
        self._model = model
        self._training = training
        self._start: dict[str, Tensor] = {}
        self._fixed: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            values = self._start if parameter.requires_grad else self._fixed
            values[name] = parameter.detach()
        for name, buffer in model.named_buffers():
            self._fixed[name] = buffer.detach()

    def __call__(self, features: Tensor, targets: Tensor) -> Tensor:
        """Clients' updates from the same model, `(clients, d)`, ordered as `Observation.update`.

        Features are `(clients, n, *input_shape)`; targets are the labels' probabilities,
        `(clients, n, classes)`.
        """
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            updates: Tensor = torch.vmap(self._update)(features, targets)
        finally:
            for module, was_training in modes:
                module.training = was_training
        return updates

    def _update(self, features: Tensor, targets: Tensor) -> Tensor:
        gradient = torch.func.grad(self._loss)
        current = self._start
        # The sum of gradients: a difference of float32 models would be rounded.
        moved = {name: torch.zeros_like(start) for name, start in current.items()}
        for _ in range(self._training.epochs):
            for rows in self._training.batches(len(features)):
                gradients = gradient(current, features[rows], targets[rows])
                moved = {name: moved[name] - gradients[name] for name in moved}
                current = {
                    name: start + self._training.learning_rate * moved[name]
                    for name, start in self._start.items()
                }
        flat = torch.cat([change.reshape(-1) for change in moved.values()])
        return self._training.learning_rate * flat

    def _loss(self, parameters: dict[str, Tensor], features: Tensor, targets: Tensor) -> Tensor:
        logits = functional_call(self._model, parameters | self._fixed, (features,))
        return functional.cross_entropy(logits, targets)


def _minimised(loss: Callable[[], Tensor], variables: Sequence[Tensor], steps: int) -> float:
    """Minimise a loss over variables, in place, and return it; infinite if NaN."""
    for variable in variables:
        variable.requires_grad_(True)
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
        gradients = torch.autograd.grad(value, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch
    remaining = float(loss().detach())
    return math.inf if math.isnan(remaining) else remaining
