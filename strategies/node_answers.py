"""What nodes told of themselves before the first charge: names, and what enforces the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Error

from fl_dp.promise import Enforcement
from fl_dp.protocol.introduction import NodeIdentity

NO_SUCH_QUERY = "No query function registered"
"""What Flower says of an app that does not know a question."""


class RehearsalFailed(RuntimeError):
    """A node will be unable to contribute; nothing was charged."""


@dataclass(kw_only=True)
class Answers:
    """Nodes' answers to the identity query, and the nodes that gave none.

    Attributes:
        timeout: Seconds that were waited.
        round_timeout: Seconds for which a round, or a statistic, will wait.
        simulated: Whether no node is real, so that a failure may be logged whole.
    """

    asked: list[int] = field(default_factory=list)
    identities: dict[int, NodeIdentity] = field(default_factory=dict)
    errors: dict[int, Error] = field(default_factory=dict)
    timeout: float = 0.0
    round_timeout: float = math.inf
    simulated: bool = False

    @property
    def silent(self) -> list[int]:
        """Nodes that did not answer."""
        answered = self.identities.keys() | self.errors.keys()
        return [node for node in self.asked if node not in answered]

    @property
    def unable(self) -> list[int]:
        """Nodes whose app does not know the question: plain Flower clients."""
        return [
            node for node, error in self.errors.items() if NO_SUCH_QUERY in (error.reason or "")
        ]

    @property
    def untried(self) -> bool:
        """Whether no app knew the question: the first round is the rehearsal."""
        return bool(self.unable) and not self.identities

    def enforcements(self, nodes: Iterable[int]) -> set[Enforcement]:
        """Each enforcement that these nodes report of themselves."""
        silent = NodeIdentity()
        return {self.identities.get(node, silent).enforcement for node in nodes}

    def called(self, node: int) -> str:
        """A node's label in messages: its name, else its id."""
        identity = self.identities.get(node, NodeIdentity())
        label = f"node '{identity.name}'" if identity.name else f"node {node}"
        return f"{label} ({identity.app})" if identity.app else label


def named(answers: Answers) -> Mapping[int, str]:
    """Name of each node that told one."""
    return {node: identity.name for node, identity in answers.identities.items() if identity.name}
