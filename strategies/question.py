"""A question to all nodes alike: a statistic, or a model's quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fl_dp.documents import real_number
from fl_dp.plan.hosting import Hosting
from fl_dp.protocol.failures import take_failure
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import CONTRIBUTION_METRIC
from fl_dp.protocol.own_grid import simulates_nodes
from fl_dp.statistics import Evaluation, NoiseChoice, Query, ScoreHistograms

from .error_meanings import meaning_of
from .log import Log
from .message_exchange import Federation, one_of_each
from .node_answers import Answers
from .rehearsal import rehearse

CONFIG = "config"
"""Name of a question's ConfigRecord."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A message for every node, and the query its answer contributes to, with its noise.

    Attributes:
        content: The message, with one ConfigRecord.
        hosting: Units that a node answers for at most.
        weighted_by: Name under which a plain app's evaluation replies with its number of records.
    """

    choice: NoiseChoice
    kind: str
    content: RecordDict
    hosting: Hosting
    weighted_by: str = "num-examples"

    @property
    def query(self) -> Query:
        """What is asked."""
        return self.choice.query

    @property
    def config(self) -> ConfigRecord:
        """Its ConfigRecord."""
        (config,) = self.content.config_records.values()
        return config

    def with_config(self, entries: Mapping[str, str]) -> Question:
        """The question with more entries in its config."""
        (name,) = self.content.config_records
        config = ConfigRecord(dict(self.config) | dict(entries))
        return replace(self, content=RecordDict(dict(self.content) | {name: config}))

    def require_summable(self, nodes: Sequence[int]) -> None:
        """Refuse more units than can be summed exactly.

        Raises:
            ValueError: If there may be more; nothing was charged.
        """
        most, hosted = self.choice.max_units, self.hosting.distinct_units
        if len(nodes) * hosted > most:
            raise ValueError(
                f"{len(nodes)} nodes of up to {hosted} units are connected, and at "
                f"most {most} units can be summed exactly at this noise: choose a "
                "smaller epsilon"
            )

    def rehearse(
        self, federation: Federation, nodes: Sequence[int], *, trusts_server: bool
    ) -> Answers:
        """Ask nodes, before the charge, whether they can and may answer. See `rehearse`.

        A plain Flower app evaluates in the clear: that will do where clients trust the server.

        Raises:
            RehearsalFailed: If an app can't, or most owners refuse; nothing was charged.
        """
        measures = self.kind == MessageType.EVALUATE
        needs = Ability.STATISTICS
        if measures or isinstance(self.query, ScoreHistograms):
            needs = Ability.EVALUATION
        return rehearse(
            federation,
            nodes,
            config=self.config,
            needs={needs},
            of_plain_apps={needs} if measures and trusts_server else (),
        )

    def to(self, node: int, content: RecordDict | None = None, *, timeout: float) -> Message:
        """The message to a node; `content`, if given, replaces its own."""
        sent = self.content if content is None else content
        return Message(sent, dst_node_id=node, message_type=self.kind, ttl=timeout)

    def answers(
        self, grid: Grid, replies: Iterable[Message], nodes: Iterable[int], log: Log
    ) -> Iterator[Message]:
        """Yield at most one reply of each asked node; a failed one counts as none.

        An error is logged once per kind: of real nodes in the server's own words, of simulated ones
        with their traceback.
        """
        simulated = simulates_nodes(grid)
        for reply in one_of_each(replies, set(nodes), log):
            if not reply.has_error():
                yield reply
                continue
            meaning, failed = meaning_of(reply.error), "a node failed and contributes zero"
            if simulated and (failure := take_failure(reply)) is not None:
                log.warn_once(f"{failed}:\n{failure.text}\n", kind=failure.kind)
            else:
                log.warn_once(failed if meaning is None else f"{failed} ({meaning.text})")

    def vectors(
        self, grid: Grid, replies: Iterable[Message], nodes: Iterable[int], log: Log
    ) -> Iterator[list[float]]:
        """Yield one vector per unit, out of at most one reply per node."""
        hosted = self.hosting.distinct_units
        for reply in self.answers(grid, replies, nodes, log):
            records = list(reply.content.metric_records.values())
            # Of several records it can't be told which is meant.
            numbers = self._numbers(records[0], log) if len(records) == 1 else []
            if not numbers or len(numbers) % self.query.dimension:
                log.warn_once("a reply is no contribution to this query and counts as zero")
                continue
            most = hosted * self.query.dimension
            if len(numbers) > most:
                log.warn_once(f"a node answered for more than {hosted} units; the rest is ignored")
            for start in range(0, min(len(numbers), most), self.query.dimension):
                yield numbers[start : start + self.query.dimension]

    def _numbers(self, record: MetricRecord, log: Log) -> list[float]:
        """A reply's vectors in a row: made by the node, or here of a plain app's evaluation."""
        if CONTRIBUTION_METRIC in record:
            sent = record[CONTRIBUTION_METRIC]
            return [real_number(number) for number in (sent if isinstance(sent, list) else [sent])]
        if self.kind != MessageType.EVALUATE or not isinstance(self.query, Evaluation):
            return []
        for name in (self.weighted_by, *self.query.names):
            if name not in record:
                log.warn_once(f"an evaluation has no '{name}' and weighs zero")
        vector: list[float] = self.query.measured(
            record, examples=record.get(self.weighted_by)
        ).tolist()
        return vector
