"""The server optimizers' steps on one flat vector, for trials of milliseconds.

They are those of Flower's strategies, which a test compares. The strategies themselves speak in
messages, which takes longer than a trial.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_dp.app.settings import ServerOptimizerSettings
from fl_dp.app.settings.optimizers import (
    FedAdagradSettings,
    FedAdamSettings,
    FedAvgMSettings,
    FedYogiSettings,
)


class ServerStep:
    """State of a server optimizer over the rounds of one trial."""

    def __init__(self, settings: ServerOptimizerSettings) -> None:
        """Start before the first round."""
        self._settings = settings
        self._rounds = 0
        self._mean: NDArray[np.float64] | float = 0.0
        self._squares: NDArray[np.float64] | float = 0.0

    def of(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far the model moves with a round's mean update, of its shape."""
        chosen, self._rounds = self._settings, self._rounds + 1
        if isinstance(chosen, FedAvgMSettings):
            self._mean = chosen.momentum * self._mean + update
            return np.asarray(chosen.learning_rate * self._mean)
        if not isinstance(chosen, FedAdagradSettings):
            return update
        rate = chosen.learning_rate
        if not isinstance(chosen, FedAdamSettings):
            self._mean, self._squares = update, self._squares + update**2
        else:
            self._mean = chosen.beta_1 * self._mean + (1.0 - chosen.beta_1) * update
            self._squares = self._decayed(chosen, update**2)
            if not isinstance(chosen, FedYogiSettings):
                later = self._rounds + 1.0  # as Flower counts
                rate *= math.sqrt(1.0 - chosen.beta_2**later) / (1.0 - chosen.beta_1**later)
        return np.asarray(rate * self._mean / (np.sqrt(self._squares) + chosen.tau))

    def _decayed(
        self, chosen: FedAdamSettings, squares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the running squares of `fedadam` or `fedyogi` after another round."""
        before, decay = self._squares, chosen.beta_2
        if isinstance(chosen, FedYogiSettings):
            return np.asarray(before - (1.0 - decay) * squares * np.sign(before - squares))
        return np.asarray(decay * before + (1.0 - decay) * squares)
