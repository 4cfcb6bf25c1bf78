"""The statement of noise in shares: each promise, what it needs, and what none of them covers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flat_plans import calibrated_plan, noised_plan

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import PrivacyBudget
from fl_dp.plan import SecureSum
from fl_dp.statement import privacy_statement
from fl_dp.statement.check import statement_differences, statement_page


def plan_of(**options: Any) -> Plan:
    return calibrated_plan(
        PrivacyBudget(epsilon=4.0, delta=1e-4),
        rounds=5,
        num_clients=100,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(max_parameters=10**6, **options),
    )


def statement_of(folder: Path, plan: Plan) -> dict[str, Any]:
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        for number in range(1, 4):
            ledger.commit(ledger.reserve(round=number))
        return privacy_statement(ledger).to_dict()


def test_both_promises_stand_there_with_what_each_needs(tmp_path: Path) -> None:
    plan = plan_of(roster=True)
    statement = statement_of(tmp_path, plan)
    sums = statement["secure_sums"]
    assert (sums["least"], sums["guaranteed"], sums["honest_shares"]) == (90, 88, 83)
    # The same noise, and seven more shares of it that nobody knows.
    quoted = statement["epsilon"][statement["quoted"]]
    assert 0.9 * quoted < sums["epsilon_of_models"] < quoted <= 4.0
    assert 0.0 < sums["slack"] == plan.slack < 1e-4
    page = statement_page(statement)
    assert "at least 88 if it lies, as nodes know each other by a roster" in page
    assert "83 of nodes that do not collude are counted; 5 may collude" in page
    assert "may lie about models, cohorts and drop-outs" in statement["adversary"]
    assert "with 90 shares of noise, if clients and server follow the protocol" in page


def test_without_a_roster_no_promise_is_made_against_a_server_that_lies(tmp_path: Path) -> None:
    statement = statement_of(tmp_path, plan_of())
    assert statement["secure_sums"]["guaranteed"] is None
    assert statement["secure_sums"]["honest_shares"] == 85
    assert "which follows the protocol" in statement["adversary"]
    invents = "a server that invents nodes, swaps keys"
    assert any(each.startswith(invents) for each in statement["not_covered"])
    assert "if it lies" not in statement_page(statement)


def test_it_says_what_no_secure_sum_promises(tmp_path: Path) -> None:
    told = " ".join(statement_of(tmp_path, plan_of(roster=True))["not_covered"])
    for words in ("malicious clients", "make it fail", "when it answers", "--trusted-entities"):
        assert words in told
    assert "a malicious server, or clients" not in told  # which the roster does cover, in part
    assert "item of several records" not in told  # a unit is a client here


def test_sums_of_records_suppose_that_an_item_is_made_of_one(tmp_path: Path) -> None:
    plan = calibrated_plan(
        PrivacyBudget(epsilon=4.0, delta=1e-6),
        rounds=5,
        unit="record",
        nodes=10,
        num_clients=1_000,
        units_per_node=200,
        coins_at_nodes=True,
        sampling_rate=1.0,
        clipping_norm=1.0,
        secure_sum=SecureSum(max_parameters=10**6),
    )
    told = " ".join(statement_of(tmp_path, plan)["not_covered"])
    assert "item of several records (mix-up, overlapping windows" in told


def test_it_comes_back_from_json_and_is_recomputed_from_the_ledger(tmp_path: Path) -> None:
    statement = json.loads(json.dumps(statement_of(tmp_path, plan_of(roster=True))))
    ledger = PrivacyLedger.read(tmp_path / "ledger.db")
    assert statement_differences(ledger, statement) == []
    statement["secure_sums"]["honest_shares"] = 90
    assert statement_differences(ledger, statement) == [
        "secure_sums.honest_shares is 90 and should be 83"
    ]
    assert "secure_sums" not in privacy_statement(_central(tmp_path)).to_dict()


def _central(folder: Path) -> PrivacyLedger:
    plan = noised_plan(
        1.0, delta=1e-4, rounds=1, num_clients=100, sampling_rate=1.0, clipping_norm=1.0
    )
    with PrivacyLedger.open(folder / "central.db", plan) as ledger:
        ledger.commit(ledger.reserve(round=1))
    return PrivacyLedger.read(folder / "central.db")
