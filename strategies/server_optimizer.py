"""Using any Flower strategy as the server optimizer of private rounds.

The inner strategy never meets a client. It is asked for the message of a round on a stand-in grid,
and given one synthetic reply whose arrays are already private, so that whatever it does with them
is post-processing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

_FLOWER_LOG = logging.getLogger("flwr")


class ServerOptimizer:
    """What turns a private mean update into the next model."""

    def __init__(self, strategy: Strategy) -> None:
        """Wrap a Flower strategy, which must be used for nothing else."""
        self.strategy = strategy

    def instruct(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, roster: Sequence[int]
    ) -> RecordDict:
        """Return what the inner strategy would send to a client in this round.

        Raises:
            ValueError: If it would send nothing.
        """
        with _quiet_flower():
            messages = list(
                self.strategy.configure_train(server_round, arrays, config, _StandInGrid(roster))
            )
        if not messages:
            raise ValueError(
                f"{type(self.strategy).__name__} trains nobody: give it fraction_train=1.0; who "
                "takes part is decided by the sampling rate of the plan"
            )
        return messages[0].content

    def step(self, server_round: int, arrays: ArrayRecord, instruction: RecordDict) -> ArrayRecord:
        """Hand over one private model and return the next one.

        Args:
            server_round: The round's number.
            arrays: The model with the private mean update applied.
            instruction: What `instruct` returned for this round.

        Raises:
            ValueError: If the inner strategy returns no model.
        """
        weight = str(getattr(self.strategy, "weighted_by_key", "num-examples"))
        key = next(iter(instruction.array_records))
        content = RecordDict({key: arrays, "metrics": MetricRecord({weight: 1})})
        origin = Message(RecordDict(), dst_node_id=1, message_type="train")
        # Flower fills the id of a message when it is sent; this one never is.
        origin.metadata.__dict__["_message_id"] = f"fl-dp-round-{server_round}"
        with _quiet_flower():
            updated, _ = self.strategy.aggregate_train(
                server_round, [Message(content, reply_to=origin)]
            )
        if updated is None:
            raise ValueError(f"{type(self.strategy).__name__} returned no model")
        return updated


class _StandInGrid(Grid):
    """A grid that has the roster's nodes and can't send anything to them."""

    def __init__(self, roster: Sequence[int]) -> None:
        self._roster = roster

    def get_node_ids(self) -> Iterable[int]:
        return self._roster

    def _refuse(self) -> NoReturn:
        raise RuntimeError("the inner strategy of DPFedAvg can't talk to clients by itself")

    def set_run(self, run: object) -> None:
        self._refuse()

    @property
    def run(self) -> NoReturn:
        self._refuse()

    def create_message(self, *args: object, **kwargs: object) -> NoReturn:
        self._refuse()

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        self._refuse()

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        self._refuse()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> NoReturn:
        self._refuse()


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Mute the inner strategy's log: it counts stand-in nodes and synthetic replies."""
    before = _FLOWER_LOG.level
    _FLOWER_LOG.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _FLOWER_LOG.setLevel(before)
