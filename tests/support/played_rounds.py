"""Rounds of a strategy played by hand, hundreds of them: nothing is sent, trained or charged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity
from local_grid import FIRST_NODE, LocalGrid, reply
from numpy.typing import NDArray

from fl_dp.ledger import Reservation
from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import Plan
from fl_dp.strategies import DPFedAvg


class HandOver(FedAvg):
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

    def summary(self) -> None: ...


class PaperLedger:
    """A ledger on no disk, which lets every round pass."""

    location, rule, insecure = "nowhere", "none", False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.participations: dict[str, int] = {}
        self.charged = 0

    def require_known(self, rng: SecureRandom) -> None: ...

    def reserve(self, *, round: int, **_: Any) -> Reservation:
        self.charged += 1
        return Reservation(
            sequence=self.charged,
            what=f"round {round}",
            noise_multiplier=self.plan.noise_multipliers[round - 1],
            index=self.charged - 1,
        )

    def commit(self, reservation: Reservation) -> None: ...

    def running_epsilon(self) -> float:
        return 0.0

    def close(self) -> None: ...


def reply_from(node: int, arrays: Mapping[str, Any], **metrics: Any) -> Message:
    """A node's train reply, for use in any round."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    asked = Message(RecordDict(), dst_node_id=FIRST_NODE + node, message_type="train")
    asked.metadata.__dict__["_message_id"] = f"asked-{node}"
    return reply(asked, dict(arrays), **metrics)


def as_arrays(vector: NDArray[np.float64], arrays: int = 1) -> dict[str, NDArray[np.float64]]:
    """A vector as a model of equally long arrays."""
    if arrays == 1:
        return {"w": vector}
    return {f"w{number}": part for number, part in enumerate(np.split(vector, arrays))}


def play(
    strategy: Strategy,
    replies: Mapping[int, Message],
    *,
    nodes: int,
    rounds: int,
    size: int,
    arrays: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Play round 1 again and again from a model of zeros, named as by `as_arrays`.

    The strategy is a `DPFedAvg` over a `PaperLedger`, or one of Flower's. Nodes without a reply
    are silent. The model has `size` coordinates, in `arrays` equally long arrays.

    Returns:
        The released models, shape `(rounds, size)`, and who was asked, shape `(rounds, nodes)`.
    """
    grid = LocalGrid(lambda message, node: None, nodes)
    parts = as_arrays(np.zeros(size), arrays)
    model = ArrayRecord({name: Array(part) for name, part in parts.items()})
    released = np.empty((rounds, size))
    asked = np.zeros((rounds, nodes), dtype=np.bool_)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    if isinstance(strategy, DPFedAvg):  # whose own methods meet no reply
        configure, aggregate = strategy.loop.open, strategy.loop.release
    for row in range(rounds):
        messages = list(configure(1, model, ConfigRecord(), grid))
        places = [message.metadata.dst_node_id - FIRST_NODE for message in messages]
        mean, _ = aggregate(1, [replies[n] for n in places if n in replies])
        assert mean is not None
        released[row] = np.concatenate([mean[name].numpy() for name in parts])
        asked[row, places] = True
    return released, asked
