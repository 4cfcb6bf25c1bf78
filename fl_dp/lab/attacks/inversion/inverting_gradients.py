"""Inverting Gradients: records whose update points the way of the one seen, and that look smooth.

Reference:
    Geiping et al. 2020, "Inverting Gradients: How easy is it to break privacy in federated
    learning?", equation 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .attack import Attack, PixelRange, Recovered, require_alike
from .labels import num_classes, recovered_labels
from .observation import Observation
from .simulated_update import SimulatedUpdate

_LOWER_AT = (3 / 8, 5 / 8, 7 / 8)  # of all steps; each divides the step size by ten, as published
_FINITE = 1e-12  # an update of length zero has no direction


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
