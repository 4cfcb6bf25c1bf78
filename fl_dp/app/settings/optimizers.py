"""The options of `server_optimizer=NAME`: the server's step with a private mean; keys of `client`.

Flower's strategies and torch are imported when something is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Annotated, Any

from fl_dp.option_errors import OptionError

from .checks import Count, Positive
from .option import KeyRule, Option, key, made_by, option

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp.strategy import Strategy

    from fl_dp.clients.cohort import LocalTraining


def _decay(name: str, value: float, *, usual: float = 0.9) -> None:
    if not 0.0 <= value < 1.0:
        raise OptionError(
            f"{name} must lie in [0, 1), got {value}: write for example {usual}", option=name
        )


def _tau(name: str, value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise OptionError(
            f"{name} must be positive and finite, got {value}: write for example 0.001, a tenth "
            "of a coordinate's mean update or less",
            option=name,
        )


def fedavg() -> Strategy:
    """Return the step that adds the update as it is."""
    from flwr.serverapp.strategy import FedAvg

    return FedAvg()


def fedavgm(
    rounds: int,
    *,
    learning_rate: Positive = 0.3,
    linear_decay: bool = False,
    momentum: Annotated[float, _decay] = 0.9,
) -> Strategy:
    """Return momentum.

    Args:
        rounds: Rounds over which the learning rate may fall.
        learning_rate: Step size on the mean update.
        linear_decay: Lower the learning rate linearly, to zero after the last round.
        momentum: Share of the last step to repeat.
    """
    from flwr.serverapp.strategy import FedAvgM

    strategy = FedAvgM(server_learning_rate=learning_rate, server_momentum=momentum)
    return _falling(strategy, "server_learning_rate", rounds) if linear_decay else strategy


def adaptive(
    name: str,
    rounds: int,
    *,
    learning_rate: Positive = 0.1,
    linear_decay: bool = False,
    tau: Annotated[float, _tau] = 1e-3,
    beta_1: Annotated[float, _decay] = 0.9,
    beta_2: Annotated[float, partial(_decay, usual=0.99)] = 0.99,
) -> Strategy:
    """Return steps over the root of a running mean of squares, or of all squares so far.

    Args:
        name: `FedAdam`; `FedYogi`, whose squares fall no faster than they grow; or `FedAdagrad`,
            which forgets none and takes no decays.
        rounds: Rounds over which the learning rate may fall.
        learning_rate: About how far a coordinate moves in a round.
        linear_decay: Lower the learning rate linearly, to zero after the last round.
        tau: Added to the root of the squares; damps coordinates whose updates are far below it.
        beta_1: Decay of the mean of updates.
        beta_2: Decay of the mean of squared updates.
    """
    from flwr.serverapp import strategy as flower

    decays = {} if name == "FedAdagrad" else {"beta_1": beta_1, "beta_2": beta_2}
    strategy = getattr(flower, name)(eta=learning_rate, tau=tau, **decays)
    return _falling(strategy, "eta", rounds) if linear_decay else strategy


def _falling(strategy: Strategy, rate: str, rounds: int) -> Strategy:
    """Set a strategy's learning rate before each step; a resumed training continues the decay."""
    first = getattr(strategy, rate)

    def lowered(self: Strategy, server_round: int, replies: Iterable[Message]) -> Any:
        setattr(self, rate, first * (1.0 - (server_round - 1) / rounds))
        return type(self).aggregate_train(self, server_round, replies)

    # Bound, so that a copy of the strategy has a copy of it.
    vars(strategy)["aggregate_train"] = MethodType(lowered, strategy)
    return strategy


def _server(name: str, maker: Callable[..., Strategy], **keys: KeyRule) -> type[Option]:
    return option("server_optimizer", name, made_by(maker, **keys), base=Option)


_TUNABLE = key(tunable=True)
_RATE = {"learning_rate": _TUNABLE, "linear_decay": _TUNABLE}
_DECAYS = _RATE | {"tau": _TUNABLE, "beta_1": _TUNABLE, "beta_2": _TUNABLE}
_OF_ALL_SQUARES = {
    "learning_rate": key(default=0.3, tunable=True),
    "linear_decay": _TUNABLE,
    "tau": _TUNABLE,
}

SERVER_OPTIMIZERS: dict[str, type[Option]] = {
    made.option: made
    for made in (
        _server("fedavgm", fedavgm, **_RATE, momentum=_TUNABLE),
        _server("fedavg", fedavg),
        _server("fedadam", partial(adaptive, "FedAdam"), **_DECAYS),
        _server("fedyogi", partial(adaptive, "FedYogi"), **_DECAYS),
        _server("fedadagrad", partial(adaptive, "FedAdagrad"), **_OF_ALL_SQUARES),
    )
}


def sgd(
    *, learning_rate: Positive = 2.0, epochs: Count = 5, batch_size: Count = 32
) -> LocalTraining:
    """Return the training at a client: plain SGD.

    Args:
        learning_rate: Step size.
        epochs: Passes over the client's data in one round.
        batch_size: Records per step.
    """
    from fl_dp.tasks.training import plain_sgd

    return plain_sgd(learning_rate=learning_rate, epochs=epochs, batch_size=batch_size)


CLIENT = option(
    "client",
    "",
    made_by(sgd, learning_rate=_TUNABLE, epochs=_TUNABLE, batch_size=_TUNABLE),
    base=Option,
)
