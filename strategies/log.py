"""What a training tells of itself, as its rounds see it. No promise needs a log."""

from __future__ import annotations

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Result


class Log:
    """A log that says nothing; `RunLog` writes."""

    def warn_once(self, text: str, *, kind: str | None = None) -> None:
        """A mishap, once per kind, by default its text: how often it happens is private."""

    def failed(self, reply: Message, *, asked: bool) -> None:
        """An error reply; not `asked`: Flower answers for a node."""

    def released(self, server_round: int, num_rounds: int, metrics: MetricRecord | None) -> None:
        """A round is over, with its released metrics."""

    def evaluated(self, server_round: int, metrics: MetricRecord | None) -> None:
        """A model's metrics on public data."""

    def finished(self, result: Result, seconds: float) -> None:
        """A training has ended."""
