"""A question to all nodes alike: a statistic, or a model's quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, RecordDict

from fl_dp.statistics import Query

from .exchange import one_of_each
from .run_log import RunLog

CONFIG = "config"
"""Name of a question's ConfigRecord."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A message for every node, and the query its answer contributes to."""

    query: Query
    kind: str
    content: RecordDict
    units_per_node: int = 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a node is to answer for no unit.
        """
        if self.units_per_node < 1:
            raise ValueError(f"units_per_node must be at least 1, got {self.units_per_node}")

    def with_config(self, entries: Mapping[str, str]) -> Question:
        """The question with more entries in its config."""
        config = ConfigRecord(dict(self.content.config_records[CONFIG]) | dict(entries))
        return replace(self, content=RecordDict(dict(self.content) | {CONFIG: config}))

    def to(self, node: int, content: RecordDict | None = None, *, timeout: float) -> Message:
        """The message to a node; `content`, if given, replaces its own."""
        sent = self.content if content is None else content
        return Message(sent, dst_node_id=node, message_type=self.kind, ttl=timeout)

    def answers(
        self, replies: Iterable[Message], nodes: Iterable[int], log: RunLog
    ) -> Iterator[Message]:
        """Yield at most one reply of each asked node; a failed one counts as none."""
        for reply in one_of_each(replies, set(nodes), log):
            if reply.has_error():
                log.warn_once("a node failed and contributes zero")
            else:
                yield reply
