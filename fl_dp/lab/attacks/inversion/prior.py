"""Guesses of somebody who saw nothing: a recovery that does no better shows nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """Images of the same kind as the private ones, which the adversary holds.

    Attributes:
        images: `(n, channels, height, width)`, none of them attacked.
    """

    images: NDArray[np.float32]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there is no image.
        """
        if not len(self.images):
            raise ValueError("a prior needs images: there are none besides those attacked")

    @property
    def mean_image(self) -> NDArray[np.float32]:
        """The mean image: of all guesses without sight the one with the least expected MSE."""
        mean: NDArray[np.float32] = self.images.mean(0, dtype=np.float64).astype(np.float32)
        return mean

    def nearest(self, image: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the image with the least MSE to a private one.

        No adversary can choose it without knowing the private one. So it is a baseline that leans
        far to the attack's disfavour: beyond it, a recovery shows this image and not its kind.
        """
        differences = self.images - image.astype(np.float32)
        squares = np.einsum("nchw,nchw->n", differences, differences)
        found: NDArray[np.float32] = self.images[int(squares.argmin())]
        return found
