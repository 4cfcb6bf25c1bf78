"""Trainings with canaries on a local grid, and what is found in what they release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flat_plans import calibrated_plan, flat_plan
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from local_grid import FIRST_NODE, LocalGrid

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import OwnRatesSampling
from fl_dp.app.compose import compose_settings
from fl_dp.app.settings import SETTINGS_KEY
from fl_dp.app.workload import initial_arrays_of
from fl_dp.codec import encode_text
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.games.canary_client import app
from fl_dp.lab.games.canary_run import RUN_KEY, CanaryRun
from fl_dp.lab.games.canary_server import WatchedFedAvg, WatchedLoop, observed_run
from fl_dp.lab.games.observed_run import Audited, Claim, ObservedRun, claims_of
from fl_dp.mechanisms import FixedClipping
from fl_dp.strategies import Selection

OVERRIDES = (
    "task.num_clients=6",
    "simulation.units_per_node=50",
    "clipping.norm=0.5",
    "client.epochs=1",
)
Z, DELTA = 2.0, 1e-3


@dataclass(frozen=True)
class Trained:
    """A loop after its rounds, and what its ledger claims."""

    loop: WatchedLoop
    claims: list[Claim]


def trained(
    kind: type[WatchedLoop],
    folder: Path,
    run: CanaryRun,
    nodes: int,
    *,
    rounds: int,
    num_clients: int,
    units_per_node: int | None = 50,
    selection: Callable[[Any], Selection] | None = None,
    **of_plan: Any,
) -> Trained:
    """Train with canaries on a grid of nodes; what a node's app raises is an error.

    Without `units_per_node` the plan has one unit a node, and no field for more.
    """

    def answer(message: Message, place: int) -> Message:
        config: dict[str, Any] = {"partition-id": place, "num-partitions": nodes}
        known: dict[str, Any] = {RUN_KEY: encode_text(run)}
        context = Context(1, FIRST_NODE + place, config, RecordDict(), known)
        try:
            return app(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)

    hosted = f"simulation.units_per_node={units_per_node or 1}"
    settings = compose_settings([*OVERRIDES, hosted, f"task.num_clients={num_clients}"])
    given: dict[str, Any] = dict(
        rounds=rounds,
        clipping=FixedClipping(norm=0.5),
        num_clients=num_clients,
        units_per_node=units_per_node,
        contribution_check=False,
        **of_plan,
    )
    if isinstance(law := of_plan["sampling"], OwnRatesSampling):
        budget = PrivacyBudget(epsilon=law.budgets[-1], delta=DELTA)
        plan = calibrated_plan(budget, **given)
    else:
        budget = PrivacyBudget(epsilon=1e6, delta=DELTA)
        plan = flat_plan(budget, noise_multiplier=Z, **given)

    class Watched(WatchedFedAvg):
        loop_class = kind

    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        strategy = Watched(
            plan=plan,
            ledger=ledger,
            run=run,
            selection=None if selection is None else selection(plan.sampling),
            roster_may_grow=not run.in_place,
        )
        strategy.start(
            LocalGrid(answer, nodes, introduces=True),
            initial_arrays_of(settings),
            num_rounds=rounds,
            train_config=ConfigRecord({SETTINGS_KEY: settings.to_json()}),
        )
        return Trained(strategy.loop, claims_of(plan, ledger.history, ledger.epsilon().best))


def judged(run: Trained, canaries: CanaryRun) -> tuple[ObservedRun, tuple[Finding, ...]]:
    """What was seen of a training, and what is found in it."""
    size = run.loop.observed[0].along.size
    seen = observed_run(run.loop, np.zeros(size))
    audited = Audited(
        run=seen,
        canaries=canaries.canaries(size),
        sampling=run.loop.plan.sampling,
        claims=run.claims,
        delta=DELTA,
    )
    return seen, audited.findings(alpha=1e-6)
