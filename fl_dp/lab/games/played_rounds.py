"""Thousands of a strategy's rounds, played by hand with our own replies and charges.

Nothing is sent, trained or charged. The strategy is real: it draws cohorts, folds replies, adds
noise and steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.ledger import Reservation
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.events import ExponentialEvent, ZcdpEvent
from fl_dp.plan import Plan
from fl_dp.protocol.flower_compat import be_in_a_run, give_id
from fl_dp.strategies import DPFedAvg

FIRST_NODE = 100


class PaperLedger:
    """A ledger without a disk, for games: every round passes, and its charge is remembered.

    It bounds nothing: training on data needs a `PrivacyLedger`.
    """

    def __init__(self, plan: Plan) -> None:
        """Charge nothing yet."""
        self.plan = plan
        self.location = "nowhere"
        self.rule = "none"
        self.insecure = False
        self.participations: dict[str, int] = {}
        self.charged: list[Any] = []

    def require_known(self, rng: SecureRandom) -> None:
        """Accept any source of noise."""

    def reserve(
        self,
        *,
        round: int,
        participants: Sequence[str | int] | None = None,
        index: int | None = None,
    ) -> Reservation:
        """Remember the charge; return the reservation that a ledger would have on disk."""
        event = self.plan.event_of(round)
        # No round of updates has one of these events.
        assert not isinstance(event, ExponentialEvent | ZcdpEvent | RandomStoppingEvent)
        self.charged.append(event)
        return Reservation(
            sequence=len(self.charged),
            what=f"round {round}",
            noise_multiplier=event.noise_multiplier,
            index=len(self.charged) - 1,
        )

    def commit(self, reservation: Reservation) -> None:
        """Do nothing."""

    def running_epsilon(self) -> float:
        """Return nothing spent."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


class HandOver(Strategy):
    """The quickest server optimizer: the private mean is the step."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return one message."""
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, dst_node_id=1, message_type="train")]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Return the private mean."""
        [only] = replies
        return only.content["arrays"], None

    def configure_evaluate(self, *_: Any) -> Iterable[Message]:
        """Ask nobody."""
        return []

    def aggregate_evaluate(self, *_: Any) -> None:
        """Return nothing."""
        return None

    def summary(self) -> None:
        """Say nothing."""


class NodesOnly(Grid):
    """Nodes 100, 101, ... that exist and are never asked.

    No `OwnGrid`: where nobody runs, a silent client has not failed.
    """

    def __init__(self, num_nodes: int) -> None:
        """Connect the nodes."""
        be_in_a_run()
        self.num_nodes = num_nodes

    def get_node_ids(self) -> Iterable[int]:
        """Their ids."""
        return range(FIRST_NODE, FIRST_NODE + self.num_nodes)

    def _unused(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError

    run = property(_unused)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _unused


class NoModel(RuntimeError):
    """A round that released nothing."""


def reply_from(node: int, arrays: Mapping[str, Any], **metrics: Any) -> Message:
    """A train reply of a node (index in the roster), for any round."""
    be_in_a_run()
    asked = Message(RecordDict(), dst_node_id=FIRST_NODE + node, message_type="train")
    give_id(asked, f"asked-{node}")
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    measured = MetricRecord({"num-examples": 1} | metrics)
    return Message(RecordDict({"arrays": record, "metrics": measured}), reply_to=asked)


def as_arrays(vector: NDArray[np.float64], arrays: int = 1) -> dict[str, NDArray[np.float64]]:
    """A vector as a model of equally long arrays."""
    parts = np.split(vector, arrays)
    if arrays == 1:
        return {"w": parts[0]}
    return {f"w{number}": part for number, part in enumerate(parts)}


def play(
    strategy: Strategy,
    replies: Mapping[int, Message],
    *,
    nodes: int,
    rounds: int,
    size: int,
    arrays: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Play round 1 `rounds` times from a model of zeros, float64, named as by `as_arrays`.

    The strategy is a `DPFedAvg` over a `PaperLedger`, or one of Flower's. Nodes without a reply
    are silent. The model has `size` coordinates, in `arrays` equally long arrays.

    Returns:
        The released models, shape `(rounds, size)`, and who was asked, shape `(rounds, nodes)`.

    Raises:
        NoModel: If a round releases none.
    """
    grid = NodesOnly(nodes)
    parts = as_arrays(np.zeros(size), arrays)
    model = ArrayRecord({name: Array(part) for name, part in parts.items()})
    released = np.empty((rounds, size))
    asked = np.zeros((rounds, nodes), dtype=np.bool_)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    if isinstance(strategy, DPFedAvg):  # whose own methods meet no reply
        configure, aggregate = strategy.loop.open, strategy.loop.release
    for row in range(rounds):
        messages = list(configure(1, model, ConfigRecord(), grid))
        nodes_asked = [message.metadata.dst_node_id - FIRST_NODE for message in messages]
        mean, _ = aggregate(1, [replies[node] for node in nodes_asked if node in replies])
        if mean is None:
            raise NoModel("a round released no model")
        released[row] = np.concatenate([mean[name].numpy() for name in parts])
        asked[row, nodes_asked] = True
    return released, asked
