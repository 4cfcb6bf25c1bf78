"""One method of DPFedAvg overridden: what reaches a subclass is private already."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from fl_dp.statement import privacy_statement
from fl_dp.strategies import DPFedAvg


class LoggingDPFedAvg(DPFedAvg):
    """Remembers how long each released model is.

    Privacy: that of `DPFedAvg`, whose subclasses are given released models alone.

    Attributes:
        norms: L2 norm of each released model.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of `DPFedAvg`."""
        super().__init__(*args, **options)
        self.norms: list[float] = []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the next model of what the round released, and remember its norm."""
        model, metrics = super().aggregate_train(server_round, replies)
        if model is not None:
            arrays = model.to_numpy_ndarrays()
            self.norms.append(float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays))))
        return model, metrics

    def report(self) -> str:
        """Return what was spent, as the ledger says, and the norms."""
        assert self.ledger is not None  # `with_budget` was given one
        statement = privacy_statement(self.ledger)
        return (
            f"Spent: {statement.guarantee}\n"
            f"Ledger: {self.ledger.location}\n"
            f"Norms of the released models: {' '.join(f'{norm:.2f}' for norm in self.norms)}"
        )
