"""Canaries in each group with a budget of its own: what the releases tell of those of one group.

False alarms: at most 1e-6 a group. A system that forgets the groups is caught.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fl_dp.strategies.selection import Draw
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from local_grid import FIRST_NODE, LocalGrid, introducing
from trainings import FixedClient

from fl_dp import PrivacyBudget, PrivacyLedger, PrivacyPlan
from fl_dp.accounting import OwnRatesSampling
from fl_dp.accounting.trade_off import trade_off
from fl_dp.clients import NodeUnits, numpy_client_app
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import SeenRound, finding_of_run
from fl_dp.strategies import DPFedAvg, OwnRatesSelection, PoissonSelection, Released

NODES, EACH, SIZE, ROUNDS, RATE, DELTA = 20, 60, 4096, 6, 0.5, 1e-4
BUDGETS = (0.5, 6.0)
CANARIES = Canaries(count=NODES * EACH, size=SIZE, seed=3)
NORM, ALPHA = 0.1, 1e-6


class Seen(DPFedAvg):
    """Keeps what each release tells of all directions, where everybody is a canary."""

    forgets_norms = False

    def _scale_of(self) -> Any:
        return None if self.forgets_norms else super()._scale_of()

    def _settle(self, released: Released) -> None:
        super()._settle(released)
        bundle = self.plan.bundle(self.plan.noise_multiplier)
        along = CANARIES.along(released.mean * self.plan.denominator) / NORM
        seen = SeenRound(along=along, noise_multiplier=bundle.updates.noise_multiplier)
        self.rounds = [*getattr(self, "rounds", []), seen]


class ForgetsNorms(Seen):
    """Clips everybody to the norm of the last group."""

    forgets_norms = True


class ForgetsRates(OwnRatesSelection):
    """Draws everybody at the rate of the last group."""

    def select(self, draw: Draw) -> Any:
        return PoissonSelection(self.sampling.rates[-1]).select(draw)


def findings(
    folder: Path, method: str, *, kind: type[Seen] = Seen, wrong: bool = False
) -> list[Finding]:
    """Train with canaries alone, and return what is found of each group, the strictest first."""
    plan = PrivacyPlan.calibrate(
        PrivacyBudget(epsilon=BUDGETS[-1], delta=DELTA),
        rounds=ROUNDS,
        num_clients=NODES * EACH,
        units_per_node=EACH,
        sampling=OwnRatesSampling.at(RATE, budgets=BUDGETS, shares=(0.5, 0.5), method=method),
        clipping_norm=NORM,
    )
    law = cast(OwnRatesSampling, plan.sampling)

    def canary(context: Context, unit: int) -> FixedClient:
        number = EACH * int(cast(int, context.node_config["partition-id"])) + unit
        there = bool(CANARIES.there[number])
        return FixedClient(100.0 * NORM * CANARIES.direction(number) * there)

    app = numpy_client_app(
        lambda context: canary(context, 0),
        units=NodeUnits(client_fn=canary, count=lambda *_: EACH),
    )

    def answer(message: Message, number: int) -> Message:
        config: dict[str, Any] = {"partition-id": number, "unit-name": f"{number:02}"}
        return app(message, Context(1, FIRST_NODE + number, config, RecordDict(), {}))

    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        selection = ForgetsRates(law) if wrong else OwnRatesSelection(law)
        strategy = kind(plan=plan, ledger=ledger, selection=selection)
        grid = LocalGrid(introducing(answer), NODES)
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(SIZE))}), num_rounds=ROUNDS)
        names = [f"{node:02}/{unit}" for node in range(NODES) for unit in range(EACH)]
        groups = np.array([ledger.group_of[name] for name in names])
        history = ledger.history
    found = []
    for group, budget in enumerate(BUDGETS):
        of = np.r_[groups == group, np.ones(SIZE - len(groups), dtype=bool)]
        scale = law.scale_of(group)
        seen = [
            # In the norms of the group, which has so much more noise.
            SeenRound(
                along=each.along / scale,
                noise_multiplier=np.full(SIZE, each.noise_multiplier / scale),
                of=of,
            )
            for each in strategy.rounds
        ]
        found.append(
            finding_of_run(
                CANARIES,
                seen,
                sampling_rate=law.rates[group],
                claim=budget,
                delta=DELTA,
                alpha=ALPHA,
                curve=trade_off(
                    law.history_for(group, history),
                    neighboring_relation=plan.neighboring_relation,
                ),
            )
        )
    return found


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_what_is_seen_of_a_group_is_within_its_own_budget_and_grows_with_it(
    tmp_path: Path, method: str
) -> None:
    strict, generous = findings(tmp_path, method)
    assert not strict.caught and not generous.caught
    assert (strict.bound or 0.0) <= BUDGETS[0]
    # The audit sees something: those who allow more are seen more.
    assert (strict.bound or 0.0) < (generous.bound or 0.0) <= BUDGETS[1]


def test_a_system_that_clips_everybody_to_the_largest_norm_is_caught_at_the_strict_group(
    tmp_path: Path,
) -> None:
    strict, generous = findings(tmp_path, "scale", kind=ForgetsNorms)
    assert strict.caught and not generous.caught


def test_a_system_that_draws_everybody_at_the_largest_rate_is_caught_at_the_strict_group(
    tmp_path: Path,
) -> None:
    strict, generous = findings(tmp_path, "sample", wrong=True)
    assert strict.caught and not generous.caught
