"""Deep leakage from gradients: records whose update has the least distance to the one seen.

References:
    Zhu et al. 2019, "Deep Leakage from Gradients".
    Zhao et al. 2020, "iDLG: Improved Deep Leakage from Gradients".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .attack import Attack, PixelRange, Recovered, require_alike
from .labels import num_classes, recovered_labels
from .observation import Observation
from .simulated_update import SimulatedUpdate

_CERTAIN = 100.0  # a logit whose class has all of the probability


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
