"""A private statistic of a whole federation, charged to the training's ledger.

    reserve -> ask every node -> [reply -> check -> bound -> add]* -> noise -> commit

    >>> choice = choose_noise(Mean(lows=(0.0,), highs=(100.0,)), epsilon=0.5, delta=1e-5)
    >>> answer = ask_federation(grid, ledger, "ages", choice, values="age")
    >>> answer["mean"].value, answer["mean"].error

Nodes answer with `numpy_client_app(statistics_fn=...)`. If the plan's noise is in shares, a secure
sum makes the answer (`charged_sum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from fl_dp.codec import encode_text
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import SecureRandom
from fl_dp.protocol.message_keys import (
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
    STATISTIC_VALUES_KEY,
)
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.statistics import (
    Answer,
    Evaluation,
    NoiseChoice,
    ScoreHistograms,
    charged_release,
)

from .charged_sum import charged_sum
from .log import Log
from .message_exchange import Federation
from .question import CONFIG, Question
from .run_log import RunLog, warn_of_no_promise
from .secure import secure_sums_of
from .unit_roster import wait_for_roster


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """How a federation is asked.

    Attributes:
        rng: Source of the server's noise; by default secure.
        config: Sent along with the query.
        window: Number of nodes that work at the same time; None leaves it to the grid.
        timeout: Seconds to wait for replies.
        roster_timeout: Seconds to wait for the plan's clients to connect, and for them to tell
            what they can answer, before any charge.
        secure_roster: The nodes of secure sums and their identities, as for `DPFedAvg`.
    """

    rng: SecureRandom | None = None
    config: ConfigRecord | None = None
    window: int | None = None
    timeout: float = 3600.0
    roster_timeout: float = 60.0
    secure_roster: SecureRoster | None = None

    def config_with(self, choice: NoiseChoice) -> dict[str, Any]:
        """What is sent along, with a query."""
        return dict(self.config or {}) | {STATISTIC_QUERY_KEY: encode_text(choice.query)}


_USUAL = AskOptions()


def ask_federation(
    grid: Grid,
    ledger: PrivacyLedger,
    name: str,
    choice: NoiseChoice,
    options: AskOptions = _USUAL,
    *,
    values: str,
) -> Answer:
    """Ask every connected node and release one private answer.

    Privacy: `choice.events`, for one unit with all its records, zero-out neighbours, against
    anyone who sees the answer. The server is trusted with the units' vectors and with the noise;
    under a plan with `DistributedNoise` it is not, as `charged_sum` says. A unit without a valid
    answer contributes zero, and the number of answers stays private. Nothing is sent before the
    charge is on disk, and a failure leaves it spent.

    Args:
        grid: Flower's grid.
        ledger: Opened to spend from, with a plan that declares `choice.events`, or one with an
            adaptive filter.
        name: Name of the ledger's entry, for instance `feature means`.
        choice: The query and its noise, from `choose_noise`. A node answers with one vector for
            each of the units that the plan says it hosts; further vectors do not count.
        options: How long to wait, and what goes along.
        values: Name of the values to look at, for the nodes' `statistics_fn`.

    Raises:
        PrivacyBudgetExhausted: If it would exceed the budget; nobody was asked.
        RosterIncomplete: If fewer clients connect than the plan declares; nothing was charged.
        RehearsalFailed: If a node's app can't answer, or most owners refuse; nothing was charged.
        SecureSumFailed: If a secure sum can't be opened; it stays charged.
        ValueError: If the plan does not declare these events, the noise is insecure and the ledger
            does not know of it, or there are more units than can be summed; nobody was asked.
    """
    entries = options.config_with(choice) | {STATISTIC_VALUES_KEY: values}
    question = Question(
        choice=choice,
        kind=f"{MessageType.QUERY}.{STATISTIC_ACTION}",
        content=RecordDict({CONFIG: ConfigRecord(entries)}),
        hosting=ledger.plan.hosting,
    )
    warn_of_no_promise(Guarantee.of(ledger.plan))
    return _answered(grid, ledger, name, question, options)


def evaluate_federation(
    grid: Grid,
    ledger: PrivacyLedger,
    name: str,
    choice: NoiseChoice,
    options: AskOptions = _USUAL,
    *,
    arrays: ArrayRecord,
) -> Answer:
    """Let every node measure a model on its data, and release private means.

        >>> query = Evaluation(names=("loss", "accuracy"), lows=(0.0, 0.0), highs=(5.0, 1.0))
        >>> choice = choose_noise(query, epsilon=0.5, delta=1e-5, law="gaussian")
        >>> answer = evaluate_federation(grid, ledger, "model 60", choice, arrays=result.arrays)
        >>> answer["loss"].value, answer["loss"].error, answer["count"].value

    The clients' `evaluate` measures: its loss is `loss`, its metrics have their own names, and its
    number of examples is a unit's weight where `max_records` is above 1. For `ScoreHistograms`
    (AUC and accuracy of two classes) the clients' `scores` return the model's score of each
    record.

    Under a plan that trusts the server a plain `ClientApp` will do: its `@app.evaluate()` replies
    with one MetricRecord of the query's names and `num-examples`, as Flower's strategies expect,
    and the server clamps each number. Anything else weighs zero.

    `arrays` is the model, public or released before; `choice` is for an `Evaluation` or
    `ScoreHistograms`. The other arguments are as for `ask_federation`.

    Privacy: as `ask_federation`; the plan declares `choice.events` among its `other_releases`, as
    often as the model is to be measured.

    Raises:
        ValueError: If the choice is of another query.
        Others: As `ask_federation`.
    """
    entries = options.config_with(choice)
    if isinstance(choice.query, ScoreHistograms):
        # A statistic, no evaluation: owners who allow exact evaluations mean single numbers.
        kind = f"{MessageType.QUERY}.{STATISTIC_ACTION}"
    elif isinstance(choice.query, Evaluation):
        # A plain app may read the round, which Flower's strategies send with each evaluation.
        kind, entries = MessageType.EVALUATE, {"server-round": 0} | entries
    else:
        raise ValueError(f"models are measured by an Evaluation, got a query '{choice.query.kind}'")
    question = Question(
        choice=choice,
        kind=kind,
        content=RecordDict({"arrays": arrays, CONFIG: ConfigRecord(entries)}),
        hosting=ledger.plan.hosting,
    )
    return _answered(grid, ledger, name, question, options)


def _answered(
    grid: Grid, ledger: PrivacyLedger, name: str, question: Question, options: AskOptions
) -> Answer:
    """Charge and ask, by a secure sum if the plan's noise is in shares."""
    plan, rng = ledger.plan, options.rng
    federation = Federation(
        grid=grid,
        window=options.window,
        timeout=options.timeout,
        roster_timeout=options.roster_timeout,
    )
    if not plan.of_sums:
        raise ValueError(
            "the plan's noise is at the clients, who trust no server, and a statistic would show "
            "it their vectors: make a DistributedPlan, whose noise is in shares, or a CentralPlan "
            "where clients trust the server; nothing was charged"
        )
    sums = secure_sums_of(plan, options.secure_roster)
    if sums is not None and rng is not None:
        raise ValueError(
            "the noise of a secure sum is drawn by its nodes, and no rng of the server's reaches "
            "it: leave rng out"
        )
    nodes = wait_for_roster(
        federation.grid,
        plan.num_clients,
        timeout=federation.roster_timeout,
        hosting=plan.hosting,
    )
    if sums is not None:
        try:
            return charged_sum(federation, ledger, name, question, nodes=nodes, sums=sums)
        finally:
            sums.forget(federation.asking())
    rng = rng if rng is not None else SecureRandom()
    question.require_summable(nodes)
    question.rehearse(federation, nodes, trusts_server=plan.trusts_server)
    return charged_answer(federation, ledger, name, question, nodes=nodes, rng=rng, log=RunLog())


def charged_answer(
    federation: Federation,
    ledger: PrivacyLedger,
    name: str,
    question: Question,
    *,
    nodes: Sequence[int],
    rng: SecureRandom,
    log: Log,
) -> Answer:
    """Reserve the events of the question's choice, ask `nodes`, and release one private answer.

    Privacy: as `charged_release`; the server is trusted with the units' vectors. Nothing is sent
    before the charge is on disk.

    Raises:
        PrivacyBudgetExhausted, ValueError: As `charged_release`; nobody was asked.
    """
    question.require_summable(nodes)
    messages = [question.to(node, timeout=federation.timeout) for node in nodes]
    # A generator: its first message leaves when its first vector is asked for, after the charge.
    replies = federation.exchange(messages)
    vectors = question.vectors(federation.grid, replies, nodes, log)
    return charged_release(ledger, name, question.choice, vectors, rng)
