"""Rounds of a strategy played by hand, thousands of them: every reply and every charge is ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from local_grid import FIRST_NODE, LocalGrid, reply

from fl_dp import PrivacyPlan
from fl_dp.accounting import ExponentialEvent, ZcdpEvent
from fl_dp.ledger import Reservation
from fl_dp.mechanisms import SecureRandom


class PaperLedger:
    """Lets every round of a plan pass and remembers what it was charged as."""

    def __init__(self, plan: PrivacyPlan) -> None:
        self.plan = plan
        self.location = "nowhere"
        self.rule = "none"
        self.insecure = False
        self.participations: dict[str, int] = {}
        self.charged: list[Any] = []

    def require_known(self, rng: SecureRandom) -> None: ...

    def reserve(
        self,
        *,
        round: int,
        noise_multiplier: float | None = None,
        participants: Sequence[str | int] | None = None,
    ) -> Reservation:
        event = self.plan.event_of(round, noise_multiplier=noise_multiplier)
        assert not isinstance(event, ExponentialEvent | ZcdpEvent)  # no round of updates is one
        self.charged.append(event)
        return Reservation(
            sequence=len(self.charged),
            what=f"round {round}",
            noise_multiplier=event.noise_multiplier,
            index=len(self.charged) - 1,
        )

    def commit(self, reservation: Reservation) -> None: ...

    def running_epsilon(self) -> float:
        return 0.0

    def close(self) -> None: ...


class HandOver(Strategy):
    """The quickest server optimizer: the private mean is the step."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, dst_node_id=1, message_type="train")]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        [only] = replies
        return only.content["arrays"], None

    def configure_evaluate(self, *_: Any) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, *_: Any) -> None:
        return None

    def summary(self) -> None: ...


def reply_from(node: int, arrays: Mapping[str, Any], **metrics: Any) -> Message:
    """A train reply of the node in that place of the roster, to be used in any round."""
    LocalGrid(
        lambda message, place: None, 1
    )  # Flower's messages want to know in which run they are
    asked = Message(RecordDict(), dst_node_id=FIRST_NODE + node, message_type="train")
    asked.metadata.__dict__["_message_id"] = f"asked-{node}"  # Flower gives it one when it is sent
    return reply(asked, dict(arrays), **metrics)


def play(
    strategy: Any, replies: Mapping[int, Message], *, nodes: int, rounds: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Play round 1 again and again from a model of zeros, `w`, float64.

    Args:
        strategy: A `DPFedAvg` over a `PaperLedger`.
        replies: What each node answers if it is asked; those without one are silent.
        nodes: How many there are.
        rounds: How often.
        size: Length of the model.

    Returns:
        The released models, shape `(rounds, size)`, and how many nodes were asked in each round.
    """
    grid = LocalGrid(lambda message, node: None, nodes)
    model = ArrayRecord({"w": Array(np.zeros(size))})
    released = np.empty((rounds, size))
    asked = np.empty(rounds, dtype=int)
    for row in range(rounds):
        messages = strategy.configure_train(1, model, ConfigRecord(), grid)
        places = [message.metadata.dst_node_id - FIRST_NODE for message in messages]
        arrays, _ = strategy.aggregate_train(1, [replies[n] for n in places if n in replies])
        released[row], asked[row] = arrays["w"].numpy(), len(places)
    return released, asked
