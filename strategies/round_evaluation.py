"""Clients' own evaluation of each released model: bounded, noised and charged.

    reserve -> ask every node -> [reply -> clamp -> add]* -> noise -> the strategy's one reply

A Flower app's `@app.evaluate()` stays as it is: the server, which clients trust, bounds its reply.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_dp.accounting import PrivacyBudgetExhausted, freeze
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.codec import encode_text
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import PrivacyLedger
from fl_dp.mechanisms import GaussianMechanism, LaplaceMechanism, SecureRandom
from fl_dp.option_errors import IncompatibleOptions, OptionError
from fl_dp.plan import Plan
from fl_dp.protocol.message_keys import STATISTIC_QUERY_KEY
from fl_dp.statistics import Answer, Evaluation, NoiseChoice

from .federation_statistics import charged_answer
from .log import Log
from .message_exchange import Federation
from .question import CONFIG, Question
from .server_optimizer import ServerOptimizer

logger = logging.getLogger("flwr.fl_dp")


def releases_of(evaluation: NoiseChoice | None, rounds: int) -> FrozenHistory:
    """The releases of one evaluation after each round, for a plan's `other_releases`."""
    if evaluation is None:
        return ()
    return freeze([(event, rounds) for event in evaluation.events])


@dataclass(frozen=True, kw_only=True)
class RoundEvaluation:
    """One private evaluation after each round of a plan.

    Privacy: after each round `choice.events`, which the plan declares, for one client with all its
    records, against anyone who sees the answers. The server is trusted with clients' replies.
    """

    choice: NoiseChoice
    plan: Plan

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            OptionError: The choice is of another query, or the plan does not pay for it.
            IncompatibleOptions: The plan trusts no server with a reply, or is a buffer's.
        """
        if not isinstance(self.choice.query, Evaluation):
            raise OptionError(
                f"evaluation is of a query '{self.choice.query.kind}': write "
                'evaluation=choose_noise(Evaluation(names=("eval_loss",), lows=(0.0,), '
                "highs=(5.0,)), epsilon=0.5, delta=1e-5)",
                option="evaluation",
            )
        plan = self.plan
        if not plan.trusts_server:
            raise IncompatibleOptions(
                f"evaluation lets the server read what each client measures, and a {plan.kind} "
                "plan trusts no server: leave evaluation out, or make a CentralPlan",
                option="evaluation",
            )
        if isinstance(plan.sampling, BufferedSampling):
            raise IncompatibleOptions(
                "evaluation asks every client after a release, and a buffer's clients still train "
                "then: leave evaluation out, and write evaluate_federation(...) after the training",
                option="evaluation",
            )
        declared = dict(plan.other_releases)
        for event, times in releases_of(self.choice, plan.rounds):
            if declared.get(event, 0) < times:
                raise OptionError(
                    f"evaluation is released {times} times in {plan.rounds} rounds, and the plan "
                    f"declares it {declared.get(event, 0)} times: write other_releases=freeze("
                    f"[(event, {plan.rounds}) for event in evaluation.events])",
                    option="evaluation",
                )

    @property
    def query(self) -> Evaluation:
        """Metrics, their ranges, and the largest number of records."""
        assert isinstance(self.choice.query, Evaluation)  # checked at construction
        return self.choice.query

    def question(self, content: RecordDict, arrays: ArrayRecord, *, weighted_by: str) -> Question:
        """The question that carries a strategy's message.

        Args:
            content: The message: one ArrayRecord, and config if any.
            arrays: The model, in place of the message's.
            weighted_by: Name of the number of records in a plain app's reply.
        """
        (model,) = content.array_records
        configs = dict(content.config_records) or {CONFIG: ConfigRecord()}
        name, config = next(iter(configs.items()))
        entries = dict(config) | {STATISTIC_QUERY_KEY: encode_text(self.query)}
        records = {**content, model: arrays, name: ConfigRecord(entries)}
        return Question(
            choice=self.choice,
            kind=MessageType.EVALUATE,
            content=RecordDict(records),
            hosting=self.plan.hosting,
            weighted_by=weighted_by,
        )

    def metrics_of(self, answer: Answer) -> dict[str, float] | None:
        """The released metrics by name; None if the noise hides even how many clients replied."""
        estimates = {name: answer[name] for name in self.query.names}
        if any(estimate.note for estimate in estimates.values()):
            return None
        return {name: float(estimate.value) for name, estimate in estimates.items()}

    def price(self) -> str:
        """What is released, its noise, and its part of the budget, in one line."""
        query, plan = self.query, self.plan
        mechanism = self.choice.summed_by
        assert isinstance(mechanism, GaussianMechanism | LaplaceMechanism)  # of any sum
        records = plan.num_units * query.max_records
        noises: list[str] = []
        for name, low, high in zip(query.names, query.lows, query.highs, strict=True):
            noise = (high - low) / 2.0 * mechanism.noise_std / records
            noises.append(f"{name} in [{low:g}, {high:g}] with noise {noise:.2g}")
        weight = "equal weights"
        if query.max_records > 1:
            weight = f"up to {query.max_records} records of each"
        alone = plan.epsilon(releases_of(self.choice, plan.rounds)).best
        return (
            f"after each round, by every client ({weight}): {', '.join(noises)} at least; "
            f"alone {Guarantee.of(plan, alone)}"
        )


def evaluation_of(
    choice: NoiseChoice | None, plan: Plan, strategy: Strategy | None, *, dp_sgd: bool
) -> RoundEvaluation | None:
    """The evaluation of a strategy's rounds, if any.

    `dp_sgd` says whether clients promise something to each of their records.

    Raises:
        OptionError: The strategy asks nobody, or as `RoundEvaluation`.
        IncompatibleOptions: Clients protect their records, or as `RoundEvaluation`.
    """
    if choice is None:
        return None
    if dp_sgd:
        raise IncompatibleOptions(
            "evaluation lets the server read what clients measure, and clients that "
            "protect their records by DP-SGD tell it nothing of them: leave evaluation out",
            option="evaluation",
        )
    if getattr(strategy, "fraction_evaluate", None) == 0.0:
        raise OptionError(
            f"evaluation is paid for, and {type(strategy).__name__}(fraction_evaluate=0.0) asks "
            "nobody: leave fraction_evaluate out, or evaluation",
            option="evaluation",
        )
    return RoundEvaluation(choice=choice, plan=plan)


@dataclass(frozen=True, kw_only=True)
class ChargedEvaluation:
    """A strategy's evaluation of its rounds: what every client measures, charged and released."""

    evaluation: RoundEvaluation
    optimizer: ServerOptimizer
    ledger: PrivacyLedger
    rng: SecureRandom
    log: Log

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the released metrics."""
        return self.evaluation.query.names

    def question(self, content: RecordDict, model: ArrayRecord) -> Question:
        """The question that carries the strategy's message. See `RoundEvaluation.question`."""
        return self.evaluation.question(content, model, weighted_by=self.optimizer.weight_key)

    def __call__(
        self,
        server_round: int,
        model: ArrayRecord,
        config: ConfigRecord,
        federation: Federation,
        nodes: Sequence[int],
    ) -> MetricRecord | None:
        """Ask nodes, and hand the private means to the strategy. See `Evaluate`."""
        content = self.optimizer.instruct_evaluation(server_round, model, config, nodes)
        if content is None:
            return None
        try:
            answer = charged_answer(
                federation,
                self.ledger,
                f"evaluation of round {server_round}",
                self.question(content, model),
                nodes=nodes,
                rng=self.rng,
                log=self.log,
            )
        except PrivacyBudgetExhausted as exhausted:
            self.log.warn_once(f"a model is not evaluated by clients: {exhausted}")
            return None
        metrics = self.evaluation.metrics_of(answer)
        if metrics is None:
            self.log.warn_once(
                "an evaluation is hidden by its noise and left out: it needs more clients that "
                "reply with every metric and their num-examples, or a larger epsilon"
            )
        else:
            logger.info("\t└──> Evaluation by clients: %s", _in_words(answer))
        return self.optimizer.step_evaluation(server_round, metrics)


def _in_words(answer: Answer) -> str:
    """Released numbers with their errors, for the log."""
    return ", ".join(
        f"{name} {float(estimate.value):.4g} (noise {float(estimate.error):.2g})"
        for name, estimate in answer.estimates.items()
    )
