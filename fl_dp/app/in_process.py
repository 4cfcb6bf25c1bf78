"""Flower's grid without Ray: a small simulation's nodes answer in this process, one by one."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

from flwr.app import Context, Error, Message, RecordDict

from fl_dp import clock
from fl_dp.clients.coins import coins_mod
from fl_dp.clients.owner.node_config import PARTITION_ID_KEY
from fl_dp.protocol.failures import Failure, reason_in_full
from fl_dp.protocol.flower_compat import ErrorCode, be_in_a_run, give_id
from fl_dp.protocol.own_grid import OwnGrid
from fl_dp.user_code import Contained

_FIRST_NODE = 1  # 0 is the server's own id

Before: TypeAlias = Callable[[Iterable[tuple[Message, Context]]], None]
"""Takes the message that is answered next, and those that wait, with their nodes' contexts."""


class InProcessGrid(OwnGrid):
    """Nodes 1, 2, ..., each with its own context for the grid's lifetime.

    Messages are copied, as between processes: no node reaches the server's arrays. A node that
    takes longer than its message lives has answered too late; it costs no other node any time.
    """

    answers_in_turn = True

    def __init__(
        self,
        app: Callable[[Message, Context], Message],
        node_configs: Sequence[Mapping[str, Any]] | None,
        *,
        run_id: int = 1,
        run_config: Mapping[str, Any] | None = None,
        before: Before | None = None,
    ) -> None:
        """Connect nodes; `run_id` is as Flower would number the run.

        `app`, a `ClientApp` or a function with the same arguments, answers every message. If
        `node_configs` is None, `host` later gives the number of nodes. `before` is called before
        each answer, in nobody's time.
        """
        be_in_a_run(run_id)
        self._app = app
        self._run_id = run_id
        self._run_config = dict(run_config or {})
        self._before = before
        self._contexts: dict[int, Context] = {}
        self._awaits_a_plan = node_configs is None
        if node_configs is not None:
            self._connect(node_configs)
        self._ids = itertools.count()
        self._asked: dict[str, Message] = {}

    def _connect(self, node_configs: Sequence[Mapping[str, Any]]) -> None:
        for node, config in enumerate(node_configs, _FIRST_NODE):
            run_config = dict(self._run_config)
            self._contexts[node] = Context(
                self._run_id, node, dict(config), RecordDict(), run_config
            )

    def host(self, num_nodes: int) -> None:
        """Connect a plan's nodes, if their number is still open."""
        if self._awaits_a_plan:
            self._awaits_a_plan = False
            self._connect(configs_of_nodes(num_nodes))

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes.

        Raises:
            ValueError: Their number is still open.
        """
        if self._awaits_a_plan:
            raise ValueError(
                "no plan has said how many nodes there are: write simulate(..., num_nodes=50)"
            )
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are asked for; return their ids."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._ids)}"
            give_id(message, message_id)
            self._asked[message_id] = message
            ids.append(message_id)
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """Let the next node answer, and return its reply; nothing if all of these have answered.

        One at a time: a waiting node looks at the clock in between, and a reply is used before the
        next takes memory.
        """
        for message_id in message_ids:
            if message_id in self._asked:
                if self._before is not None:
                    self._before(self._others_waiting(message_id))
                return [self._answer(deepcopy(self._asked.pop(message_id)))]
        return []

    def require_shared(self, folders: Iterable[Path]) -> None:
        """Accept: one process's nodes find the same in these folders."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to all messages."""
        ids = list(self.push_messages(messages))
        return [reply for message_id in ids for reply in self.replies_to([message_id])]

    def _others_waiting(self, first: str) -> Iterator[tuple[Message, Context]]:
        """Messages without an answer, and their nodes' contexts; that of an id first."""
        later = (message_id for message_id in self._asked if message_id != first)
        for message_id in (first, *later):
            message = self._asked[message_id]
            yield message, self._contexts[message.metadata.dst_node_id]

    def _answer(self, message: Message) -> Message:
        return answer_of(self._in_time, message, self._contexts[message.metadata.dst_node_id])

    def _in_time(self, message: Message, context: Context) -> Message:
        began = clock.now()
        reply = self._app(message, context)
        taken, lifetime = clock.now() - began, message.metadata.ttl
        if taken > lifetime:
            raise TimeoutError(f"the client took {taken:.3g} s and had {lifetime:.3g} s (timeout)")
        return reply


def configs_of_nodes(num_nodes: int) -> list[dict[str, Any]]:
    """Flower's own configuration of each simulated node."""
    return [{PARTITION_ID_KEY: node, "num-partitions": num_nodes} for node in range(num_nodes)]


def answer_of(
    app: Callable[[Message, Context], Message], message: Message, context: Context
) -> Message:
    """An app's reply to a message; if it raises, an error reply with its traceback.

    It draws coins of its own (`coins_mod`), whatever the app is.
    """
    with Contained() as attempt:
        return coins_mod(message, context, app)
    raised = attempt.failure
    assert raised is not None  # else it has returned
    reason = reason_in_full(repr(raised).partition("\n")[0], Failure.from_exception(raised))
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@contextmanager
def flower_in_silence(*, below: int = logging.CRITICAL + 1) -> Iterator[None]:
    """Hide what Flower and nodes log `below` a level, by default all, from the terminal.

    A run's log file has it all.
    """
    flower = logging.getLogger("flwr")
    shown = [handler for handler in flower.handlers if not isinstance(handler, logging.FileHandler)]
    levels, propagate = [handler.level for handler in shown], flower.propagate
    for handler in shown:
        handler.setLevel(below)
    flower.propagate = False
    try:
        yield
    finally:
        flower.propagate = propagate
        for handler, level in zip(shown, levels, strict=True):
            handler.setLevel(level)
