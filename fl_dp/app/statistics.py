"""One private statistic instead of a training: plan, answer and privacy statement."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fl_dp.accounting import (
    NeighboringRelation,
    PoissonSampling,
    PrivacyBudget,
    PrivacyEvent,
    freeze,
)
from fl_dp.codec import encode
from fl_dp.files import private_folder, write_text
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import FixedClipping, GaussianMechanism
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import CentralPlan, DistributedPlan, Plan
from fl_dp.plan.fields import plan_of
from fl_dp.protocol.message_keys import SIMULATED_LEDGERS_KEY
from fl_dp.statement import privacy_statement
from fl_dp.statistics import (
    Answer,
    Frequencies,
    Histogram,
    Mean,
    NoiseChoice,
    Quantiles,
    Query,
    Sum,
)
from fl_dp.strategies import AskOptions, ask_federation

from .accounts import open_training, with_account_delta
from .planning import target_delta
from .run_folder import RunFolder
from .server import logged_to, output_dir, roster_of
from .settings import SETTINGS_KEY, Settings
from .settings.statistic import chosen_noise, columns_that_may_lack, ranked
from .workload import check_data, dataset_of

logger = logging.getLogger("flwr.fl_dp")


def answer_statistic(grid: Grid, settings: Settings, *, run_id: str) -> Answer:
    """Answer the settings' statistic once, and write the run's folder.

    It holds settings, ledger, privacy statement and `statistic.json`.

    Raises:
        ValueError: The settings can't be carried out; nobody was asked.
        FileExistsError: There is a run of that name.
    """
    settings = settings.hosting(settings.simulation.units_at_node)
    folder = RunFolder(output_dir(settings) / (settings.run_name or f"flwr-{run_id}"))
    settings = with_account_delta(settings, folder.path)
    choice, plan = statistic_plan(settings)
    folder.create(settings)
    folder.note_process()
    with logged_to(folder.log):
        check_data(settings)
        rng = settings.privacy.rng()
        shared = settings.privacy.noised_by == "nodes"
        config: dict[str, str] = {SETTINGS_KEY: settings.for_clients().to_json()}
        if shared:  # each simulated node charges itself, as a real one does
            private_folder(folder.node_ledgers)
            config[SIMULATED_LEDGERS_KEY] = str(folder.node_ledgers)
        with open_training(folder, settings, plan, rng=rng, run_id=run_id) as ledger:
            try:
                answer = ask_federation(
                    grid,
                    ledger,
                    f"{settings.statistic.query} of {settings.statistic.values}",
                    choice,
                    AskOptions(
                        rng=None if shared else rng,
                        config=ConfigRecord(dict(config)),
                        timeout=settings.round_timeout,
                        roster_timeout=settings.roster_timeout,
                        secure_roster=roster_of(settings),
                    ),
                    values=settings.statistic.values,
                )
            finally:
                # Also after a failure: what was reserved is spent, and somebody has to say so.
                folder.write_statement(privacy_statement(ledger))
            spent = ledger.epsilon().best
        document = price(settings, choice, plan) | {
            "epsilon": spent,
            "answer": answer.to_dict(),
            "rows": [list(row) for row in statistic_rows(settings, choice.query, answer)],
        }
        write_text(folder.statistic, json.dumps(document, indent=2) + "\n", public=True)
    logger.info("Spent: %s; see %s", Guarantee.of(plan, spent), folder.path)
    return answer


def statistic_plan(settings: Settings) -> tuple[NoiseChoice, Plan]:
    """The query with its noise, and a plan whose budget is its cost.

    Raises:
        ValueError: The settings ask nothing that can be answered; the text says what to write.
    """
    privacy, asked = settings.privacy, settings.statistic
    query, delta = _query(settings), target_delta(settings)
    fields: dict[str, Any] = dict(
        budget=PrivacyBudget(epsilon=1.0, delta=delta),
        rounds=0,
        num_clients=settings.task.num_clients,
        sampling=PoissonSampling(sampling_rate=1.0),
        clipping=FixedClipping(norm=1.0),  # of rounds, and there are none
        neighboring_relation=NeighboringRelation(privacy.neighboring_relation),
        units_per_node=settings.simulation.units_at_node,
        contribution_check=False,
        noise_multiplier=1.0,
    )
    kind: type[Plan] = CentralPlan
    sums = privacy.get("secure_sum")
    shared = sums is not None
    if sums is not None:
        options = replace(sums.make(), max_parameters=query.dimension)
        kind, fields = DistributedPlan, fields | {"secure_sum": options}

    def planned(*events: PrivacyEvent) -> Plan:
        releases = freeze([(event, 1) for event in events])
        return plan_of(kind, fields | {"other_releases": releases}).with_spent_budget()

    if privacy.noise_multiplier is not None:
        mechanism = GaussianMechanism(
            noise_multiplier=privacy.noise_multiplier, clipping_norm=query.l2_sensitivity
        )
        choice = NoiseChoice(
            query=query,
            mechanisms=(mechanism,),
            explanation=(
                f"Gaussian noise of standard deviation {mechanism.noise_std:.4g} on each "
                "coordinate of the sum, as asked for"
            ),
        )
        return choice, planned(*choice.events)
    assert privacy.epsilon is not None  # the settings refuse both being null
    budget = PrivacyBudget(epsilon=privacy.epsilon, delta=delta)
    if shared:
        asked = asked.with_values(law="gaussian")
        some = replace(planned(GaussianEvent(noise_multiplier=1.0)), budget=budget)
        budget = some.event_budget
    choice = asked.make_by(chosen_noise, query=query, epsilon=budget.epsilon, delta=budget.delta)
    return choice, planned(*choice.events)


def _query(settings: Settings) -> Query:
    """The settings' query.

    Raises:
        ValueError: Range, edges or classes are missing; the text says what to write.
    """
    query: Query = settings.statistic.make(
        task=settings.task, form=lambda: dataset_of(settings).form
    )
    return query


def price(settings: Settings, choice: NoiseChoice, plan: Plan) -> dict[str, Any]:
    """A statistic's description and cost, as plain JSON values."""
    noise = choice.explanation
    if plan.noise is not None:
        (mechanism,) = choice.mechanisms
        assert isinstance(mechanism, GaussianMechanism)  # the one that nodes can share
        shared = plan.noise.shared_statistic(mechanism, choice.query.dimension, plan.hosting)
        noise += f"; {plan.noise.in_shares(shared)}"
    return {
        "task": settings.task.name,
        "values": settings.statistic.values,
        "query": encode(choice.query),
        "mode": settings.privacy.mode,
        "clients": plan.num_clients,
        "epsilon": plan.epsilon().best,
        "delta": plan.budget.delta,
        "unit": "one client with all its records",
        "guarantee": Guarantee.of(plan, plan.epsilon().best).to_dict(),
        "neighboring_relation": str(plan.neighboring_relation),
        "noise": noise,
    }


def statistic_rows(
    settings: Settings, query: Query, answer: Answer
) -> list[tuple[str, float, float]]:
    """Rows of a name, its value, and its error."""
    asked = settings.statistic
    if isinstance(query, Frequencies) and asked.query == "top":
        error = float(answer.error[0])
        most = asked.make_by(ranked, query=query, counts=answer["counts"])
        return [(str(category), count, error) for category, count in most]
    columns = columns_that_may_lack(settings.task) if asked.values == "missing" else ()
    name = _names(query, columns)
    rows = []
    for part, estimate in answer.estimates.items():
        values, errors = np.atleast_1d(estimate.value), np.atleast_1d(estimate.error)
        for index, (value, error) in enumerate(zip(values, errors, strict=True)):
            rows.append((name(part, index), float(value), float(error)))
    return rows


def _names(query: Query, columns: Sequence[str]) -> Callable[[str, int], str]:
    """A function that names an answer's number, by part and index; a mean may have `columns`."""
    match query:
        case Frequencies():
            return lambda _, index: str(query.categories[index])
        case Histogram():
            return lambda _, index: f"{query.edges[index]:g} to {query.edges[index + 1]:g}"
        case Quantiles():
            return lambda _, index: f"{query.probabilities[index]:g}"
        case Mean() | Sum() if columns or query.features > 1:
            names = columns or range(query.features)
            return lambda part, index: part if part == "count" else f"{part} of {names[index]}"
        case _:
            return lambda part, _: part
