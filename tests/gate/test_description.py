"""What a gate's owner is told before it starts: status 1 exactly where nothing could be trained."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from fl_dp.accounting import PrivacyBudgetExhausted, PrivacyEvent
from fl_dp.clients.owner.node_config import NodeConfig, NodeConfigError
from fl_dp.gate.description import describe_gate
from fl_dp.gate.policy import GatePolicy, GatePromise
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account, RunLimit

HASH = "0f" * 32


def policy_of(folder: Path, written: dict[str, Any]) -> GatePolicy:
    file = folder / "policy.yaml"
    usual = {"dp-ledger-path": str(folder / "ledger.db"), "dp-gate-answer-after": 60.0}
    file.write_text(yaml.safe_dump(usual | written))
    return GatePolicy.read(file)


def record(folder: Path, **changed: Any) -> GatePolicy:
    terms = {"noise-multiplier": 1.0, "sampling-rate": 0.01, "steps": 20, "clipping-norm": 1.0}
    written = {
        "dp-gate-promise": "record",
        "dp-max-epsilon": 2.0,
        "dp-allowed-apps": f"hospital/heart@{HASH}",
        "dp-gate-environment": "/srv/app/venv",
        "dp-gate-dp-sgd": terms,
    }
    return policy_of(folder, written | changed)


def drawn(rng: Random) -> dict[str, Any]:
    """Lines of a policy whose numbers are usual, large, tiny, or as far out as a float goes."""

    def number(low: float = -308.0, high: float = 308.0) -> float:
        far = [5e-324, 1e308, float(10.0 ** rng.uniform(low, high))]
        return rng.choice([float(10.0 ** rng.uniform(-1, 2)), rng.choice(far)])

    written: dict[str, Any] = {"dp-max-epsilon": number(), "dp-max-delta": 1e-5}
    if rng.random() < 0.3:
        return written | {
            "dp-gate-promise": "local",
            "dp-gate-clipping-norm": number(-9, 9),
            "dp-gate-noise-multiplier": number(),
        }
    return written | {
        "dp-gate-promise": "record",
        "dp-allowed-apps": f"hospital/heart@{HASH}",
        "dp-gate-environment": "/srv/app/venv",
        "dp-gate-dp-sgd": {
            "noise-multiplier": number(0, 308),
            "sampling-rate": rng.choice([1.0, rng.random(), 10.0 ** rng.uniform(-300, 0)]),
            "steps": rng.choice([1, 20, 1000, 10**18]),
            "clipping-norm": 10.0 ** rng.uniform(-9, 9),
        },
    }


def charge_one(policy: GatePolicy) -> None:
    """Charge what one training behind such a gate costs, as its mods do."""
    owner = NodeConfig.of(policy.node_config)
    event: PrivacyEvent
    if policy.keys.promise is GatePromise.LOCAL:
        event, count, unit = policy.least_noise.mechanism().event(), 1, "client"
    else:
        plan = policy.record_plan
        event, count, unit = plan.event, plan.steps, "record"
    assert owner.cap is not None and owner.ledger_path is not None
    with NodeLedger.open(owner.ledger_path) as ledger:
        ledger.charge(
            Account(unit=unit, source=owner.source),
            event,
            count=count,
            budget=owner.cap,
            limit=RunLimit(run="run 1", budget=owner.cap),
            what="round 1",
        )


def test_it_is_wrong_exactly_where_not_one_training_can_be_paid(tmp_path: Path) -> None:
    rng = Random(51)
    outcomes = []
    for number in range(80):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            policy = policy_of(folder, drawn(rng))
        except NodeConfigError:
            continue
        said = describe_gate(policy)
        try:
            charge_one(policy)
            paid = True
        except (PrivacyBudgetExhausted, ArithmeticError, ValueError):
            paid = False
        assert bool(said.wrong) is not paid, (said.wrong, policy)
        outcomes.append(paid)
    assert min(outcomes.count(True), outcomes.count(False)) > 10


def test_a_cap_that_is_spent_is_told(tmp_path: Path) -> None:
    policy = record(tmp_path)
    assert not describe_gate(policy).wrong
    with pytest.raises(PrivacyBudgetExhausted):
        for _ in range(1000):
            charge_one(policy)
    [wrong] = describe_gate(policy).wrong
    assert "no room in the cap for one more training" in wrong


def test_a_cap_below_one_training_is_told(tmp_path: Path) -> None:
    [wrong] = describe_gate(record(tmp_path, **{"dp-max-epsilon": 0.01})).wrong
    assert "no room for one training: write other terms in dp-gate-dp-sgd" in wrong


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (f"hospital/heart@{HASH}", "reads and hashes each bundle itself."),
        ("hospital/heart>=1.2,<2", "can be anybody's that takes the name."),
        (None, "Each app that the server sends may reach the data here"),
    ],
)
def test_it_says_how_an_app_is_known(tmp_path: Path, rule: str | None, said: str) -> None:
    written: dict[str, Any] = {
        "dp-gate-promise": "local",
        "dp-gate-clipping-norm": 1.0,
        "dp-gate-noise-multiplier": 8.0,
        "dp-max-epsilon": 4.0,
    }
    if rule is not None:
        written["dp-allowed-apps"] = rule
    text = ". ".join(describe_gate(policy_of(tmp_path, written)).sentences) + "."
    assert said in text
    assert "says of itself" not in text  # as without a gate, where an app may lie about itself
