"""Settings of the steps that are made at the server and at a client."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_dp.option_errors import OptionError

from .checks import at_least, choices, positive


@dataclass(kw_only=True)
class ServerOptimizerSettings:
    """Step of the server with a private mean update.

    Attributes:
        name: `fedavg`, `fedavgm`, `fedadam`, `fedyogi` or `fedadagrad`.
        learning_rate: Step size (all but `fedavg`): on the mean update, or for the last three about
            how far a coordinate moves in a round. `server_optimizer=fedadam` and its like bring
            their own.
        momentum: Share of the last step to repeat (`fedavgm`).
        beta_1: Decay of the mean of updates (`fedadam`, `fedyogi`).
        beta_2: Decay of the mean of squared updates (`fedadam`, `fedyogi`).
        tau: Added to the root of the squares (the last three); updates far below it move a
            coordinate less than `learning_rate`.
    """

    name: str = "fedavgm"
    learning_rate: float = 0.3
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        """Check the values."""
        choices("server_optimizer", self)
        positive("server_optimizer.learning_rate", self.learning_rate)
        for key, value, usual in (
            ("momentum", self.momentum, 0.9),
            ("beta_1", self.beta_1, 0.9),
            ("beta_2", self.beta_2, 0.99),
        ):
            if not 0.0 <= value < 1.0:
                raise OptionError(
                    f"{{server_optimizer.{key}}} must lie in [0, 1), got {value}: write for "
                    f"example "
                    f"{usual}"
                )
        if not (math.isfinite(self.tau) and self.tau > 0):
            raise OptionError(
                f"{{server_optimizer.tau}} must be positive and finite, got {self.tau}: write for "
                "example 0.001, a tenth of a coordinate's mean update or less"
            )


@dataclass(kw_only=True)
class ClientSettings:
    """Training at a client: plain SGD.

    Attributes:
        learning_rate: Step size.
        epochs: Passes over the client's data in one round.
        batch_size: Records per step.
    """

    learning_rate: float = 2.0
    epochs: int = 5
    batch_size: int = 32

    def __post_init__(self) -> None:
        """Check the values."""
        positive("client.learning_rate", self.learning_rate)
        at_least("client.epochs", self.epochs, 1)
        at_least("client.batch_size", self.batch_size, 1)
