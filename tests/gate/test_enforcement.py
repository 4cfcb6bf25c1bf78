"""What a server states of a training whose nodes are behind gates, and of one whose are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from gated_site import Gates, adding
from local_grid import FIRST_NODE, LocalGrid

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.clients import noised_client_app
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import DistributedPlan, LocalPlan, Plan, SecureSum
from fl_dp.plan.plan import ANOTHER_APP, AROUND_A_GATE
from fl_dp.promise import Enforcement
from fl_dp.protocol.identity import NodeIdentity
from fl_dp.statement import PrivacyStatement, privacy_statement, statement_markdown
from fl_dp.statement.check import statement_differences
from fl_dp.strategies import DPFedAvg

NODES = 3
SUMS = {
    "dp-gate-promise": "distributed",
    "dp-gate-noise-multiplier": None,
    "dp-max-epsilon": 1e9,
}


def local_plan() -> LocalPlan:
    return LocalPlan(
        budget=PrivacyBudget(epsilon=2.0, delta=1e-5),
        rounds=2,
        num_clients=NODES,
        clipping=FixedClipping(norm=0.5),
    ).calibrated()


def distributed_plan() -> Plan:
    plan = noised_plan(
        2.0,
        delta=1e-3,
        rounds=2,
        num_clients=NODES,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(),
        contribution_check=False,
    )
    assert isinstance(plan, DistributedPlan)
    return plan


class SomeGates(Gates):
    """Gates, and nodes without one, whose app is fl-dp's."""

    def __init__(self, folder: Path, without: frozenset[int] = frozenset(), **policy: Any) -> None:
        super().__init__(folder, NODES, **policy)
        self.without = without

    def __call__(self, message: Message, node: int) -> Message:
        if node not in self.without:
            return super().__call__(message, node)
        app = noised_client_app()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            [reply] = adding(0.01)(message)
            assert isinstance(reply, Message)
            return reply

        return app(message, Context(1, FIRST_NODE + node, {}, RecordDict(), {}))


def stated(folder: Path, plan: Plan, gates: Gates) -> PrivacyStatement:
    initial = ArrayRecord({"w": Array(np.zeros(100))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        DPFedAvg(plan=plan, ledger=ledger).start(LocalGrid(gates, NODES), initial, num_rounds=1)
    with PrivacyLedger.read(folder / "server.db") as read:
        statement = privacy_statement(read)
        assert not statement_differences(read, statement.to_dict())
    return statement


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "local": (local_plan, {}),
    "distributed": (distributed_plan, SUMS),
}


@pytest.mark.parametrize(("plan_of", "policy"), KINDS.values(), ids=KINDS)
def test_where_all_sites_keep_apps_apart_no_app_is_trusted(
    tmp_path: Path, plan_of: Any, policy: dict[str, Any]
) -> None:
    gates = SomeGates(tmp_path, **policy)
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, plan_of(), gates)
    assert statement.enforcement is Enforcement.SITE
    assert statement.trusted.startswith("each site's own gate")
    assert "software" not in statement.trusted
    assert not {ANOTHER_APP, AROUND_A_GATE} & set(statement.not_covered)
    assert "| holds | enforced by the site, whatever app" in statement_markdown(statement)
    assert PrivacyStatement.from_dict(statement.to_dict()) == statement


@pytest.mark.parametrize(("plan_of", "policy"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("isolated", [0, 2])
def test_where_one_site_does_not_the_promise_is_cooperative(
    tmp_path: Path, plan_of: Any, policy: dict[str, Any], isolated: int
) -> None:
    gates = SomeGates(tmp_path, **policy)
    for here in gates.sites[:isolated]:
        here.gate.isolated = True
    statement = stated(tmp_path, plan_of(), gates)
    assert statement.enforcement is Enforcement.COOPERATIVE
    assert AROUND_A_GATE in statement.not_covered
    assert ANOTHER_APP not in statement.not_covered
    assert "| holds | cooperative, whatever app" in statement_markdown(statement)


def test_where_one_node_has_no_gate_every_app_is_trusted(tmp_path: Path) -> None:
    gates = SomeGates(tmp_path, frozenset({1}))
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, local_plan(), gates)
    assert statement.enforcement is None
    assert ANOTHER_APP in statement.not_covered
    assert statement.trusted.startswith("each client's own software")
    assert "enforcement" not in statement.to_dict()
    assert "| holds |" not in statement_markdown(statement)


def test_rounds_of_one_training_without_gates_count_for_all_of_it(tmp_path: Path) -> None:
    plan, file = local_plan(), tmp_path / "server.db"
    with PrivacyLedger.open(file, plan) as ledger:
        ledger.note_enforcement(Enforcement.SITE)
        stages = [ledger.enforcement]
        ledger.commit(ledger.reserve(round=1))
        stages.append(ledger.enforcement)
        assert stages == [Enforcement.APP, Enforcement.SITE]  # of no round at first
        entries = len(ledger.entries)
        ledger.note_enforcement(Enforcement.SITE)
        assert len(ledger.entries) == entries
    with PrivacyLedger.open(file, plan) as ledger:  # whose nodes nobody has asked
        ledger.commit(ledger.reserve(round=2))
    with PrivacyLedger.read(file) as read:
        assert read.enforcement is Enforcement.APP


def test_a_promise_that_trusts_the_server_says_nothing_of_gates(tmp_path: Path) -> None:
    plan = noised_plan(
        2.0, delta=1e-3, rounds=2, num_clients=NODES, sampling_rate=1.0, clipping_norm=1.0
    )
    clip: dict[str, Any] = {
        "dp-gate-promise": "clip",
        "dp-gate-noise-multiplier": None,
        "dp-max-epsilon": None,
    }
    gates = SomeGates(tmp_path, **clip)
    for here in gates.sites:
        here.gate.isolated = True
    statement = stated(tmp_path, plan, gates)
    assert statement.enforcement is None
    assert statement.trusted == plan.trusted


@pytest.mark.parametrize("said", ["root", None, 7, ["enforced by the site"], "by the app"])
def test_what_can_t_be_meant_is_the_weakest(said: Any) -> None:
    known = NodeIdentity(enforcement=Enforcement.SITE).to_config()
    assert NodeIdentity.of(known).enforcement is Enforcement.SITE
    text = str(known["fl-dp-about"]).replace('"enforced by the site"', json.dumps(said))
    hostile = ConfigRecord({**known, "fl-dp-about": text})
    assert NodeIdentity.of(hostile).enforcement is Enforcement.APP


@pytest.mark.parametrize(
    ("plan", "policy", "noise", "norm", "sites"),
    [
        # 2.0 x 0.5 x sqrt(400) = 20; (20 / 0.5)^2 = 1,600 sites.
        (None, {"dp-gate-clipping-norm": 0.5}, "20", "0.5", "1,600"),
        # The sum's own: 2 x 1.0 x sqrt(400) = 40, and with 40 sites as much update.
        (distributed_plan, SUMS, "40", "1", "40"),
    ],
)
def test_a_gate_says_how_many_sites_it_takes_before_the_app_trains(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    plan: Any,
    policy: dict[str, Any],
    noise: str,
    norm: str,
    sites: str,
) -> None:
    caplog.set_level("INFO")
    said: list[list[str]] = []
    gates = SomeGates(tmp_path, **policy)
    trains = adding(0.0)

    def app(message: Message) -> Any:
        said.append([line for line in caplog.messages if "more noise than updates" in line])
        return trains(message)

    for here in gates.sites:
        here.app = app
    grid, initial = LocalGrid(gates, NODES), ArrayRecord({"w": Array(np.zeros(400))})
    if plan is None:
        FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES).start(grid, initial, num_rounds=2)
    else:
        with PrivacyLedger.open(tmp_path / "server.db", plan()) as ledger:
            DPFedAvg(plan=plan(), ledger=ledger).start(grid, initial, num_rounds=2)
    [line] = said[0]
    assert f"has length {noise} over 400 parameters, and an update {norm} at most" in line
    assert f"fewer than {sites} sites" in line
    assert said[-1] == [line]  # once a run
