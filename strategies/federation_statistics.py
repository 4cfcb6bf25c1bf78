"""A private statistic asked of a whole federation, under the training's ledger.

    reserve -> ask every node -> [reply -> check -> bound -> add]* -> noise -> commit

    >>> choice = choose_noise(Mean(lows=(0.0,), highs=(100.0,)), epsilon=0.5, delta=1e-5)
    >>> answer = ask_federation(grid, ledger, "ages", choice, values="age")
    >>> answer["mean"].value, answer["mean"].error

Nodes answer with `numpy_client_app(statistics_fn=...)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom
from fl_dp.protocol.keys import (
    CONTRIBUTION_METRIC,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
from fl_dp.statistics import Answer, NoiseChoice, charged_release, query_to_dict

from .exchange import exchange, one_of_each
from .modes.replies import numbers_of
from .roster import wait_for_roster
from .run_log import RunLog


def ask_federation(
    grid: Grid,
    ledger: PrivacyLedger,
    what: str,
    choice: NoiseChoice,
    *,
    values: str,
    rng: SecureRandom | None = None,
    config: ConfigRecord | None = None,
    units_per_node: int = 1,
    window: int | None = None,
    timeout: float = 3600.0,
    roster_timeout: float = 60.0,
) -> Answer:
    """Ask every node that is connected and release one private answer.

    Privacy: `choice.events`, for one unit with all its records, zero-out neighbours, against
    anyone who sees the answer. The server is trusted with the units' vectors and with the noise. A
    unit that does not answer, or not as it should, contributes zero, and the answer does not say
    how many did. Nothing is sent before the charge is on disk, and a failure leaves it spent.

    Args:
        grid: Flower's grid.
        ledger: Opened to spend from, with a plan that declares `choice.events`, or one with
            an adaptive filter.
        what: A name for the records, for instance `feature means`.
        choice: The query and its noise, from `choose_noise`.
        values: Which of their values the nodes shall look at; their `statistics_fn` gets the name.
        rng: Where the noise comes from; a secure source by default.
        config: Sent along with the query.
        units_per_node: Privacy units that a node hosts at most. A node answers with one vector a
            unit; of more than so many those beyond do not count.
        window: How many nodes are under way at once; chosen by the grid when None.
        timeout: Seconds to wait for replies.
        roster_timeout: Seconds to wait for the plan's clients to connect, before anything is
            charged.

    Returns:
        The private numbers, how far off they are, and what they cost.

    Raises:
        PrivacyBudgetExhausted: If it would exceed the budget; nobody was asked.
        RosterIncomplete: If fewer clients connect than the plan declares; nothing was charged.
        ValueError: If the plan does not declare these events, the noise is insecure and the ledger
            does not know of it, or there are more units than can be summed; nobody was asked.
    """
    if units_per_node < 1:
        raise ValueError(f"units_per_node must be at least 1, got {units_per_node}")
    nodes = wait_for_roster(
        grid, ledger.plan.num_clients, timeout=roster_timeout, units_per_node=units_per_node
    )
    if len(nodes) * units_per_node > choice.max_units:
        raise ValueError(
            f"{len(nodes)} nodes of up to {units_per_node} units are connected, and at most "
            f"{choice.max_units} units can be summed exactly at this noise: choose a smaller "
            "epsilon"
        )
    told = {
        STATISTIC_QUERY_KEY: json.dumps(query_to_dict(choice.query)),
        STATISTIC_VALUES_KEY: values,
    }
    content = RecordDict({"config": ConfigRecord(dict(config or {}) | told)})
    messages = [
        Message(content, dst_node_id=node, message_type=f"query.{STATISTIC_ACTION}", ttl=timeout)
        for node in nodes
    ]
    # A generator: its first message leaves when its first vector is asked for, after the charge.
    replies = exchange(grid, messages, window=window, timeout=timeout)
    vectors = _contributions(replies, nodes, choice.query.dimension, units_per_node)
    return charged_release(
        ledger, what, choice, vectors, rng if rng is not None else SecureRandom()
    )


def _contributions(
    replies: Iterator[Message], nodes: Sequence[int], dimension: int, units_per_node: int
) -> Iterator[list[float]]:
    """Yield one vector a unit, out of at most one reply a node; logs each kind of mishap once."""
    log = RunLog()
    most = units_per_node * dimension
    for reply in one_of_each(replies, set(nodes), log):
        if reply.has_error():
            log.warn_once("a node failed and contributes zero")
            continue
        numbers = numbers_of(reply.content).get(CONTRIBUTION_METRIC, [])
        # Of several records it can't be told which is meant.
        if len(reply.content.metric_records) != 1 or len(numbers) % dimension:
            numbers = []
        if not numbers:
            log.warn_once("a reply is no contribution to this query and counts as zero")
        if len(numbers) > most:
            log.warn_once(
                f"a node answered for more than {units_per_node} units; the rest is ignored"
            )
        for start in range(0, min(len(numbers), most), dimension):
            yield numbers[start : start + dimension]
