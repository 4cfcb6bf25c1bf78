"""In a simulation what never works costs one round, and says why with one traceback, whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import calibrated_plan
from flwr.app import Context, Error, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from local_grid import LocalGrid, arrays_of, reply
from owned_clock import OwnedClock
from trainings import plan_of, record

from fl_dp import PrivacyBudget
from fl_dp.accounting import PoissonSampling, VisibleSampling
from fl_dp.app import simulate
from fl_dp.clients import NodeUnits, noised_client_app, numpy_client_app
from fl_dp.ledger import PrivacyLedger
from fl_dp.protocol.flower_compat import ErrorCode
from fl_dp.strategies import (
    Checkpoint,
    DPFedAvg,
    LawSelection,
    NobodyContributes,
    PublicSelection,
    UnprotectedFedAvg,
)

CLIENTS, ROUNDS = 10, 6
HEADING = "Traceback (most recent call last):"


class Simulated(LocalGrid):
    """Nodes of Flower's simulation engine, which is known by the name of its grid."""


Simulated.__name__ = "InMemoryGrid"


class Works(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return [each + 0.1 for each in parameters], 5, {}


class Raises(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        raise LookupError("a column of patient 4711")


class Exits(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        raise SystemExit(3)


class Diverges(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return [each * np.inf for each in parameters], 5, {}


def plain(train: Callable[[Message, Context], Message]) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


def raising(message: Message, context: Context) -> Message:
    raise LookupError("a column of patient 4711")


def exiting(message: Message, context: Context) -> Message:
    raise SystemExit(3)


def noised(train: Callable[[Message, Context], Message]) -> ClientApp:
    app = noised_client_app()
    app.train()(train)
    return app


def hosting(client: type[NumPyClient]) -> ClientApp:
    units = NodeUnits(client_fn=lambda context, unit: client(), count=lambda *_: 5)
    return numpy_client_app(lambda context: client(), units=units)


def trained(
    tmp_path: Path, client: ClientApp, *, model: Any = None, num_nodes: int = CLIENTS, **plan: Any
) -> int:
    """Simulate a training at epsilon 8, and return the rounds that its ledger was charged."""
    app = ServerApp()
    ledger = str(tmp_path / "ledger.db")

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        sizes: dict[str, Any] = {"rounds": ROUNDS, "num_clients": CLIENTS, "sampling_rate": 1.0}
        budget = PrivacyBudget(epsilon=8.0, delta=1e-3)
        drawn = calibrated_plan(budget, clipping_norm=1.0, **sizes, **plan)
        strategy = DPFedAvg(plan=drawn, ledger=PrivacyLedger.open(ledger, drawn))
        arrays = record(w=np.zeros(3, np.float32)) if model is None else model
        strategy.start(grid, arrays, num_rounds=ROUNDS)

    try:
        simulate(app, client, num_nodes=num_nodes)
    finally:
        with PrivacyLedger.read(ledger) as spent:
            tmp_path.joinpath("spent").write_text(str(spent.rounds_spent))
    return spent_in(tmp_path)


def spent_in(tmp_path: Path) -> int:
    return int(tmp_path.joinpath("spent").read_text())


NEVER_WORK: dict[str, tuple[ClientApp, dict[str, Any], str]] = {
    "numpy_client_app": (
        numpy_client_app(lambda c: Raises()),
        {},
        "LookupError: a column of patient 4711",
    ),
    "a plain app": (plain(raising), {}, "LookupError: a column of patient 4711"),
    "sys.exit": (numpy_client_app(lambda c: Exits()), {}, "SystemExit: 3"),
    "sys.exit in a plain app": (plain(exiting), {}, "SystemExit: 3"),
    "client_fn": (numpy_client_app(lambda c: 1 / 0), {}, "ZeroDivisionError: division by zero"),  # type: ignore[arg-type, return-value]  # it raises
    "units that a node adds up": (
        hosting(Raises),
        {"units_per_node": 5, "num_nodes": 2},
        "LookupError: a column of patient 4711",
    ),
    "noise at the clients": (
        numpy_client_app(lambda c: Raises()),
        {"client_scheme": "gaussian"},
        "LookupError: a column of patient 4711",
    ),
    "noise around a plain app": (
        noised(raising),
        {"client_scheme": "gaussian"},
        "LookupError: a column of patient 4711",
    ),
}


@pytest.mark.parametrize("kind", NEVER_WORK)
def test_clients_that_never_work_cost_a_simulation_one_round(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, plan, last = NEVER_WORK[kind]
    with pytest.raises(SystemExit, match=r"^error: every client of a round failed") as ended:
        trained(tmp_path, app, **plan)
    assert spent_in(tmp_path) == 1
    said = str(ended.value)
    assert said.count(HEADING) == 1
    assert said.splitlines()[1] == HEADING
    assert said.splitlines()[-1] == last
    logged = [each for each in caplog.records if each.exc_info or HEADING in each.getMessage()]
    assert not logged  # the one traceback is that of the error


def test_updates_that_are_never_finite_cost_a_simulation_one_round(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="One of them:\nan update was not finite"):
        trained(tmp_path, numpy_client_app(lambda c: Diverges()))
    assert spent_in(tmp_path) == 1


def test_without_privacy_nothing_is_said_to_be_spent() -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = UnprotectedFedAvg(selection=LawSelection(PoissonSampling(sampling_rate=1.0)))
        strategy.start(grid, record(w=np.zeros(3, np.float32)), num_rounds=ROUNDS)

    with pytest.raises(SystemExit, match="LookupError") as ended:
        simulate(app, numpy_client_app(lambda c: Raises()), num_nodes=3)
    assert "spent" not in str(ended.value)


def test_one_client_that_never_works_ends_nothing_and_is_told_whole_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def client(context: Context) -> NumPyClient:
        return Exits() if context.node_config["partition-id"] == 3 else Works()

    with caplog.at_level(logging.WARNING):
        assert trained(tmp_path, numpy_client_app(client)) == ROUNDS
    assert caplog.text.count("SystemExit: 3") == 1


def test_clients_that_stop_working_end_a_simulation_too(tmp_path: Path) -> None:
    calls: list[int] = []

    def client(context: Context) -> NumPyClient:
        calls.append(1)
        return Works() if len(calls) <= 2 * CLIENTS else Raises()

    with pytest.raises(SystemExit, match="every client of a round failed"):
        trained(tmp_path, numpy_client_app(client))
    assert spent_in(tmp_path) == 3


def test_a_first_model_that_is_not_finite_is_refused_before_a_charge(tmp_path: Path) -> None:
    model = record(w=np.array([0.0, np.inf], np.float32), steps=np.array([3]))
    with pytest.raises(SystemExit, match=r"^error: 'w' of the first model holds a value") as ended:
        trained(tmp_path, numpy_client_app(lambda c: Works()), model=model)
    assert "\n" not in str(ended.value)
    assert spent_in(tmp_path) == 0


@pytest.mark.parametrize(
    "metrics",
    [{"a": b"bytes"}, {"a": {}}, {"num-examples": 1}, None],
    ids=str,
)
def test_metrics_that_no_plan_asks_for_cost_nobody_a_contribution(
    metrics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Measures(Works):
        def fit(self, parameters: Any, config: Any) -> Any:
            trained, examples, _ = super().fit(parameters, config)
            return trained, examples, metrics

    assert trained(tmp_path, numpy_client_app(lambda c: Measures())) == ROUNDS
    assert "failed" not in caplog.text


def test_one_client_that_is_silent_ends_nothing_where_clients_have_worked(
    tmp_path: Path, clock: OwnedClock
) -> None:
    asked: list[Message] = []

    def answer(message: Message, partition: int) -> Message | None:
        asked.append(message)
        silent = 3 if worked_first else 1
        return None if len(asked) == silent else reply(message, arrays_of(message))

    plan = plan_of(CLIENTS, sampling=VisibleSampling(cohort=1), rounds=ROUNDS)
    for worked_first in (True, False):
        asked.clear()
        ledger = PrivacyLedger.open(tmp_path / f"{worked_first}.db", plan)
        strategy = DPFedAvg(
            plan=plan, ledger=ledger, selection=PublicSelection(VisibleSampling(cohort=1))
        )
        ended = nullcontext() if worked_first else pytest.raises(NobodyContributes, match="none of")
        with ledger, ended:
            strategy.start(
                Simulated(answer, CLIENTS), record(w=np.zeros(3)), num_rounds=ROUNDS, timeout=9.0
            )
        assert len(asked) == (ROUNDS if worked_first else 1)


def test_after_a_resume_one_client_that_fails_ends_nothing(tmp_path: Path) -> None:
    plan = plan_of(CLIENTS, sampling=VisibleSampling(cohort=1), rounds=ROUNDS)
    kept: list[Checkpoint] = []
    asked: list[Message] = []

    def answer(message: Message, partition: int) -> Message:
        asked.append(message)
        if len(asked) == 2:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no"), reply_to=message)
        return reply(message, arrays_of(message))

    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        for rounds in (1, 3):
            strategy = DPFedAvg(
                plan=plan,
                ledger=ledger,
                selection=PublicSelection(VisibleSampling(cohort=1)),
                after_round=kept.append,
            )
            if kept:
                strategy.resume(kept[-1])
            strategy.start(
                Simulated(answer, CLIENTS), record(w=np.zeros(3)), num_rounds=rounds, timeout=9.0
            )
    assert len(asked) == 3
