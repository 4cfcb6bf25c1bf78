"""A training's log lines: what it promises, each mishap once, how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Result

from fl_dp.guarantee import Guarantee
from fl_dp.ledger import SpentLedger
from fl_dp.plan import Plan, RecordPlan

from .error_meanings import meaning_of
from .log import Log

logger = logging.getLogger("flwr.fl_dp")


@dataclass(eq=False)
class RunLog(Log):
    """The log of one training; `spent` returns its words for the price after each round."""

    spent: Callable[[], str] = str
    _warned: set[str] = field(default_factory=set, init=False)

    def warn_once(self, text: str, *, kind: str | None = None) -> None:
        """Log a mishap once per kind, by default its text: how often it happens is private."""
        if (kind or text) not in self._warned:
            self._warned.add(kind or text)
            logger.warning("%s (said once)", text)

    def failed(self, reply: Message, *, asked: bool) -> None:
        """Log the node and the meaning of its error, once per kind."""
        meaning = meaning_of(reply.error)
        cause = "" if meaning is None else f" ({meaning.text})"
        at = f" at node {reply.metadata.src_node_id}" if asked else ""
        self.warn_once(
            f"a client failed{at}{cause}; a failed client contributes zero",
            kind=f"a client failed{cause}",
        )

    def released(self, server_round: int, num_rounds: int, metrics: MetricRecord | None) -> None:
        """Log that a round is over, with its released metrics."""
        logger.info("[ROUND %d/%d] released%s", server_round, num_rounds, self.spent())
        if metrics is not None:
            logger.info("\t└──> Aggregated MetricRecord: %s", metrics)

    def evaluated(self, server_round: int, metrics: MetricRecord | None) -> None:
        """Log a model's metrics on public data, as Flower does."""
        if metrics is None:
            return
        if server_round > 0:
            logger.info("Global evaluation")
            logger.info("\t└──> MetricRecord: %s", metrics)
        else:
            logger.info("Initial global evaluation results: %s", metrics)

    def finished(self, result: Result, seconds: float) -> None:
        """Log how a training ended, as Flower's `Strategy.start` does."""
        ended = f"Strategy execution finished in {seconds:.2f}s"
        results = [f"\t{line}" for line in str(result).splitlines()]
        for line in ("", ended, "", "Final results:", "", *results, ""):
            logger.info("%s", line)


def log_promise(
    plan: Plan,
    ledger: SpentLedger,
    of_records: RecordPlan | None,
    evaluation: str | None = None,
) -> None:
    """Log what a private training will release and at what price.

    `evaluation` is that of clients' evaluations, if any.
    """
    budget = Guarantee.of(plan)
    logger.info("\t├── Budget: %s", budget)
    logger.info(
        "\t├── Rounds: %d, %.4g of %d %ss expected in each",
        plan.rounds,
        plan.expected_cohort,
        plan.num_units,
        plan.hosting.sampled,
    )
    logger.info("\t├── Sampling: %s", plan.sampling.describe(plan.hosting.sampled))
    logger.info(
        "\t├── Clipping norm %.4g (%s), noise multiplier %s %s, denominator %.4g",
        plan.clipping_norm,
        plan.release.clipping.kind,
        _describe_noise(plan),
        plan.noise_location,
        plan.denominator,
    )
    if evaluation is not None:
        logger.info("\t├── Evaluation: %s", evaluation)
    if of_records is not None:
        log_record_promise(of_records)
    logger.info("\t├── Rule: %s", ledger.rule)
    logger.info("\t└── Ledger: %s", ledger.location)
    warn_of_no_promise(budget)
    if ledger.insecure:
        logger.warning("NO PRIVACY: the noise is INSECURE, who knows the seed can subtract it")


def log_record_promise(plan: RecordPlan, *, last: bool = False) -> None:
    """Log what clients promise to each of their records."""
    budget = Guarantee.of(plan)
    logger.info(
        "\t%s Records: budget %s at each client, DP-SGD with noise "
        "multiplier %.4g, sampling rate %.4g, %d steps a round, planned for %d rounds of a client",
        "└──" if last else "├──",
        budget,
        plan.noise_multiplier,
        plan.sampling_rate,
        plan.steps,
        plan.participations,
    )
    warn_of_no_promise(budget)


def warn_of_no_promise(budget: Guarantee) -> None:
    """Log an epsilon that promises nothing as what it is."""
    if budget.warning is not None:
        logger.warning(budget.warning)


def _describe_noise(plan: Plan) -> str:
    low, high = min(plan.noise_multipliers), max(plan.noise_multipliers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
