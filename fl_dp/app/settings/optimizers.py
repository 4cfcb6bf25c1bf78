"""Settings of the server's step, a class for each `server_optimizer=NAME`, and of the client's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from fl_dp.option_errors import OptionError

from .checks import at_least, positive, tracked

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp.strategy import Strategy


@dataclass(kw_only=True)
class ServerOptimizerSettings:
    """Step of the server with a private mean update; this option adds the update as it is.

    Attributes:
        name: Option of the group.
    """

    name: str = tracked("fedavg")

    @property
    def momentum(self) -> float:
        """Share of the last step that is repeated."""
        return 0.0

    @property
    def linear_decay(self) -> bool:
        """Whether the learning rate falls."""
        return False

    def make(self) -> Strategy:
        """Return the Flower strategy that makes the step."""
        from flwr.serverapp.strategy import FedAvg

        return FedAvg()

    def make_for(self, rounds: int) -> Strategy:
        """Return the strategy for a number of rounds, over which its rate may fall."""
        strategy = self.make()
        if self.linear_decay:
            _let_fall(strategy, rounds)
        return strategy


@dataclass(kw_only=True)
class FedAvgMSettings(ServerOptimizerSettings):
    """Momentum.

    Attributes:
        learning_rate: Step size on the mean update.
        linear_decay: Lower the learning rate linearly, to zero after the last round.
        momentum: Share of the last step to repeat.
    """

    name: str = tracked("fedavgm")
    learning_rate: float = tracked(0.3, tunable=True)
    linear_decay: bool = tracked(False, tunable=True)
    momentum: float = tracked(0.9, tunable=True)

    def __post_init__(self) -> None:
        """Check the values."""
        positive("server_optimizer.learning_rate", self.learning_rate)
        _decay("momentum", self.momentum, usual=0.9)

    def make(self) -> Strategy:
        """Return the Flower strategy that makes the step."""
        from flwr.serverapp.strategy import FedAvgM

        return FedAvgM(server_learning_rate=self.learning_rate, server_momentum=self.momentum)


@dataclass(kw_only=True)
class FedAdagradSettings(ServerOptimizerSettings):
    """Steps over the root of all squares so far.

    Attributes:
        learning_rate: About how far a coordinate moves in a round.
        linear_decay: Lower the learning rate linearly, to zero after the last round.
        tau: Added to the root of the squares; damps coordinates whose updates are far below it.
    """

    name: str = tracked("fedadagrad")
    learning_rate: float = tracked(0.3, tunable=True)
    linear_decay: bool = tracked(False, tunable=True)
    tau: float = tracked(1e-3, tunable=True)

    def __post_init__(self) -> None:
        """Check the values."""
        positive("server_optimizer.learning_rate", self.learning_rate)
        if not 0.0 < self.tau < float("inf"):
            raise OptionError(
                f"server_optimizer.tau must be positive and finite, got {self.tau}: write for "
                "example 0.001, a tenth of a coordinate's mean update or less",
                option="server_optimizer.tau",
            )

    def make(self) -> Strategy:
        """Return the Flower strategy that makes the step."""
        from flwr.serverapp.strategy import FedAdagrad

        return FedAdagrad(eta=self.learning_rate, tau=self.tau)


@dataclass(kw_only=True)
class FedAdamSettings(FedAdagradSettings):
    """Steps over the root of a running mean of squares.

    Attributes:
        beta_1: Decay of the mean of updates.
        beta_2: Decay of the mean of squared updates.
    """

    name: str = tracked("fedadam")
    learning_rate: float = tracked(0.1, tunable=True)
    beta_1: float = tracked(0.9, tunable=True)
    beta_2: float = tracked(0.99, tunable=True)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        _decay("beta_1", self.beta_1, usual=0.9)
        _decay("beta_2", self.beta_2, usual=0.99)

    def make(self) -> Strategy:
        """Return the Flower strategy that makes the step."""
        from flwr.serverapp.strategy import FedAdam

        return FedAdam(eta=self.learning_rate, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau)


@dataclass(kw_only=True)
class FedYogiSettings(FedAdamSettings):
    """FedAdam with squares that fall no faster than they grow."""

    name: str = tracked("fedyogi")

    def make(self) -> Strategy:
        """Return the Flower strategy that makes the step."""
        from flwr.serverapp.strategy import FedYogi

        return FedYogi(eta=self.learning_rate, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau)


@dataclass(kw_only=True)
class ClientSettings:
    """Training at a client: plain SGD.

    Attributes:
        learning_rate: Step size.
        epochs: Passes over the client's data in one round.
        batch_size: Records per step.
    """

    learning_rate: float = tracked(2.0, tunable=True)
    epochs: int = tracked(5, tunable=True)
    batch_size: int = tracked(32, tunable=True)

    def __post_init__(self) -> None:
        """Check the values."""
        positive("client.learning_rate", self.learning_rate)
        at_least("client.epochs", self.epochs, 1)
        at_least("client.batch_size", self.batch_size, 1)

    @property
    def steps(self) -> dict[str, Any]:
        """The arguments of a client's training, by name."""
        return {name: getattr(self, name) for name in ("learning_rate", "epochs", "batch_size")}


def _let_fall(strategy: Strategy, rounds: int) -> None:
    """Set a strategy's learning rate before each step; a resumed training continues the decay."""
    key = "server_learning_rate" if hasattr(strategy, "server_learning_rate") else "eta"
    first = getattr(strategy, key)

    def lowered(self: Strategy, server_round: int, replies: Iterable[Message]) -> Any:
        setattr(self, key, first * (1.0 - (server_round - 1) / rounds))
        return type(self).aggregate_train(self, server_round, replies)

    # Bound, so that a copy of the strategy has a copy of it.
    vars(strategy)["aggregate_train"] = MethodType(lowered, strategy)


def _decay(key: str, value: float, *, usual: float) -> None:
    if not 0.0 <= value < 1.0:
        raise OptionError(
            f"server_optimizer.{key} must lie in [0, 1), got {value}: write for example {usual}",
            option=f"server_optimizer.{key}",
        )


SERVER_OPTIMIZERS: tuple[ServerOptimizerSettings, ...] = (
    FedAvgMSettings(),
    ServerOptimizerSettings(),
    FedAdamSettings(),
    FedYogiSettings(),
    FedAdagradSettings(),
)
"""The options of `server_optimizer=NAME`."""
