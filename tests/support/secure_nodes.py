"""Nodes of secure sums behind a `LocalGrid`: our own app, each with its keys and ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from local_grid import FIRST_NODE
from numpy.typing import NDArray

from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.clients.queries import StatisticsFn

Loses = Callable[[str, int, int], bool]
"""Whether a message is lost: its kind, how often the node had that kind before, and the node."""

Update = Sequence[NDArray[Any]]

Measured = tuple[float, int, dict[str, Any]]
"""Loss, number of examples, and metrics, as a client's `evaluate` returns them."""


class Adds(NumPyClient):
    """Answers with the model plus its own update; None: its training fails."""

    def __init__(self, update: Update | None, measured: Measured | None = None) -> None:
        self.update, self.measured = update, measured

    def fit(self, parameters: Any, config: Any) -> Any:
        if self.update is None:
            raise RuntimeError("the training failed")
        summed = [a + b for a, b in zip(parameters, self.update, strict=True)]
        return summed, 1, {"loss": 0.5}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        if self.measured is None:
            raise RuntimeError("nothing was measured")
        return self.measured


class SecureNodes:
    """An `Answer` for a grid.

    Attributes:
        seen: Every message that arrived at a node: its kind and the node.
        replies: Every reply that left a node, in order.
    """

    introduces = True

    def __init__(
        self,
        folder: Path,
        updates: Sequence[Sequence[Update | None]],
        *,
        owners: Mapping[int, Mapping[str, Any]] | None = None,
        loses: Loses = lambda kind, times, node: False,
        loses_reply: Loses = lambda kind, times, node: False,
        max_epsilon: float | None = None,
        statistics_fn: StatisticsFn | None = None,
        measured: Callable[[int, int], Measured | None] = lambda node, unit: None,
    ) -> None:
        """Make nodes, each with the units whose updates are given.

        `measured` gives what a unit measures when it evaluates, by node and unit; None: its
        evaluation fails.
        """
        self.updates, self.statistics_fn, self.measured = updates, statistics_fn, measured
        self.loses, self.loses_reply = loses, loses_reply
        self.seen: list[tuple[str, int]] = []
        self.replies: list[Message] = []
        self._times: Counter[tuple[str, int]] = Counter()
        self.contexts: dict[int, Context] = {}
        for node in range(len(updates)):
            (folder / f"node-{node}").mkdir(parents=True, exist_ok=True)
            config: dict[str, Any] = {
                "dp-ledger-path": str(folder / f"node-{node}" / "ledger.db"),
                "dp-unit-name": f"site-{node:03d}",
                "dp-allow-unverified-apps": True,
            }
            if max_epsilon is not None:
                config["dp-max-epsilon"] = max_epsilon
            config |= dict((owners or {}).get(node, {}))
            self.contexts[node] = Context(1, FIRST_NODE + node, config, RecordDict(), {})

    def app(self) -> ClientApp:
        """The app, as a node runs it."""

        def made(context: Context, unit: int) -> Adds:
            node = context.node_id - FIRST_NODE
            return Adds(self.updates[node][unit], self.measured(node, unit))

        units = NodeUnits(
            client_fn=made,
            count=lambda context, config: len(self.updates[context.node_id - FIRST_NODE]),
        )
        return numpy_client_app(
            lambda context: made(context, 0), units=units, statistics_fn=self.statistics_fn
        )

    def __call__(self, message: Message, node: int) -> Message | None:
        kind = message.metadata.message_type.removeprefix("query.fl_dp_")
        times = self._times[kind, node]
        self._times[kind, node] += 1
        gone = Message(Error(code=3, reason="gone"), reply_to=message)
        if self.loses(kind, times, node):
            return gone
        self.seen.append((kind, node))
        # A fresh app for each message, as on a real node: no memory but what is on disk.
        reply = self.app()(message, self.contexts[node])
        self.replies.append(reply)
        return gone if self.loses_reply(kind, times, node) else reply

    def total(self, nodes: Sequence[int] | None = None) -> NDArray[np.float64]:
        """What the units of some nodes, all by default, add up to, flattened."""
        chosen = range(len(self.updates)) if nodes is None else nodes
        rows = [
            np.concatenate([np.ravel(values) for values in update])
            for node in chosen
            for update in self.updates[node]
            if update is not None
        ]
        total: NDArray[np.float64] = np.sum(rows, axis=0)
        return total


def refusals(nodes: SecureNodes) -> list[str]:
    """The reasons of all error replies, in order."""
    return [str(reply.error.reason) for reply in nodes.replies if reply.has_error()]
