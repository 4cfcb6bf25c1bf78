"""A policy of a gate: each thing that can't be meant is an error that says what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from record_plans import record_plan

from fl_dp.clients import NodeConfig, NodeConfigError
from fl_dp.clients.owner.node_config import POLICY_KEYS
from fl_dp.gate.policy import (
    GATE_KEYS,
    KEYS_OF_APPS,
    KEYS_OF_DATA,
    KEYS_OF_RECORDS,
    KEYS_OF_SUMS,
    GatePolicy,
    GatePromise,
)

LOCAL: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-gate-promise": "local",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-noise-multiplier": 4.0,
    "dp-gate-answer-after": 60,
}
DISTRIBUTED: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-gate-promise": "distributed",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-answer-after": 60,
}
RECORD: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-max-epsilon": 8.0,
    "dp-allowed-apps": "hospital/heart@" + "0f" * 32,
    "dp-gate-promise": "record",
    "dp-gate-dp-sgd": {
        "noise-multiplier": 1,
        "sampling-rate": 0.01,
        "steps": 20,
        "clipping-norm": 1.5,
    },
    "dp-gate-environment": "/srv/app/venv",
    "dp-gate-answer-after": 60,
}
TERMS = RECORD["dp-gate-dp-sgd"]
CLIP: dict[str, Any] = {
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-gate-promise": "clip",
    "dp-gate-clipping-norm": 0.5,
    "dp-gate-answer-after": 60,
}


def read(folder: Path, keys: dict[str, Any], **changed: Any) -> GatePolicy:
    written = {key: value for key, value in (keys | changed).items() if value is not None}
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(written))
    return GatePolicy.read(file)


def test_a_policy_says_what_the_gate_does_and_what_the_node_s_mods_require(tmp_path: Path) -> None:
    policy = read(tmp_path, LOCAL, **{"dp-allowed-apps": ["a/b", "c/d>=2"]})
    assert policy.keys.promise is GatePromise.LOCAL
    assert policy.least_noise.noise_multiplier == 4.0
    owner = NodeConfig.of(policy.node_config)
    assert owner.required == (frozenset({"local"}),)
    assert owner.allowed_apps is not None and len(owner.allowed_apps) == 2
    assert NodeConfig.of(read(tmp_path, CLIP).node_config).required == ()
    summed = NodeConfig.of(read(tmp_path, DISTRIBUTED, **{"dp-secagg-min-sum": 5}).node_config)
    assert summed.required == (frozenset({"distributed"}),)
    assert summed.secagg_min_sum == 5


def test_terms_of_a_named_app_are_a_plan_within_the_cap(tmp_path: Path) -> None:
    policy = read(tmp_path, RECORD, **{"dp-max-delta": 1e-6})
    assert NodeConfig.of(policy.node_config).required == (frozenset({"record"}),)
    assert policy.record_plan == record_plan(
        epsilon=8.0,
        delta=1e-6,
        noise_multiplier=1.0,
        sampling_rate=0.01,
        steps=20,
        clipping_norm=1.5,
    )


@pytest.mark.parametrize(
    ("keys", "changed", "said"),
    [
        (LOCAL, {"dp-gate-promise": None}, "dp-gate-promise is missing"),
        *(
            (policy, {"dp-gate-clipping-norm": None}, "needs a line `dp-gate-clipping-norm: 0.5`")
            for policy in (LOCAL, DISTRIBUTED, CLIP)
        ),
        (LOCAL, {"dp-gate-promise": "none"}, "dp-gate-promise should be 'local', "),
        (LOCAL, {"dp-gate-clipping-norm": float("inf")}, "should be a finite number"),
        (LOCAL, {"dp-gate-noise-multiplier": 1e-12}, "use at least"),
        (LOCAL, {"dp-gate-answer-after": 0}, "dp-gate-answer-after should be greater than 0"),
        (LOCAL, {"dp-gate-noise-multiplier": None}, "needs a line `dp-gate-noise-multiplier: 8.0`"),
        (LOCAL, {"dp-max-epsilon": None}, "needs a line `dp-max-epsilon: 4.0`"),
        (LOCAL, {"dp-ledger-path": None}, "needs a line `dp-ledger-path: /srv/private/ledger.db`"),
        (LOCAL, {"dp-gate-norm": 1.0}, "did you mean dp-gate-"),
        (LOCAL, {"dp-require-privacy": "record"}, "dp-require-privacy would bind an app"),
        (LOCAL, {"dp-data-path": "/srv/clinic"}, "dp-data-path: write it into --node-config"),
        (LOCAL, {"dp-record-epsilon": 1.0}, "dp-record-epsilon would bind an app"),
        (LOCAL, {"dp-policy-path": "/srv/other.yaml"}, "'dp-policy-path' is no key of a policy"),
        (LOCAL, {"dp-allowed-apps": "heart"}, "an app is publisher/name"),
        (LOCAL, {"dp-gate-metrics": {"loss": 3}}, "must give 'loss' two numbers, like [0, 1]"),
        (LOCAL, {"dp-gate-metrics": {"loss": [1, 0]}}, "the range of metric 'loss' must be two"),
        (LOCAL, {"dp-gate-evaluation": {"num-examples": [0, 9]}}, "is a name of the protocol"),
        (CLIP, {"dp-gate-metrics": {"loss": [0, 5]}}, "the line dp-gate-metrics says nothing"),
        (CLIP, {"dp-gate-evaluation": {"a": [0, 1]}}, "line dp-gate-evaluation says nothing"),
        (CLIP, {"dp-max-epsilon": 4.0}, "the line dp-max-epsilon says nothing"),
        (CLIP, {"dp-gate-noise-multiplier": 4.0}, "line dp-gate-noise-multiplier says nothing"),
        (CLIP, {"dp-ledger-path": None}, "clip needs a line `dp-ledger-path"),
        *(
            (policy, {key: 2}, f"the line {key} says nothing")
            for policy in (LOCAL, CLIP, RECORD)
            for key in KEYS_OF_SUMS
        ),
        *(
            (policy, {key: RECORD.get(key, {"lr": 0.1})}, f"the line {key} says nothing")
            for policy in (LOCAL, DISTRIBUTED, CLIP)
            for key in KEYS_OF_RECORDS
        ),
        *(
            (RECORD, {key: None}, f"needs a line `{key}: ")
            for key in ("dp-max-epsilon", "dp-allowed-apps", "dp-gate-dp-sgd")
        ),
        (RECORD, {"dp-gate-environment": None}, "needs a line `dp-gate-environment: /srv/"),
        (RECORD, {"dp-gate-environment": ""}, "should have at least 1 character"),
        (RECORD, {"dp-gate-clipping-norm": 1.0}, "the line dp-gate-clipping-norm says nothing"),
        (RECORD, {"dp-gate-metrics": {"a": [0, 1]}}, "the line dp-gate-metrics says nothing"),
        (RECORD, {"dp-ledger-path": "sqlite:////srv/l.db"}, "must be a file"),
        (RECORD, {"dp-allowed-apps": "a/b@" + "0" * 63}, "write one, with all 64 digits"),
        (RECORD, {"dp-allowed-apps": ["a/b@" + "0" * 64] * 2}, "write one, with all 64 digits"),
        (RECORD, {"dp-gate-dp-sgd": TERMS | {"delta": 1e-5}}, "must be four numbers"),
        (RECORD, {"dp-gate-dp-sgd": TERMS | {"steps": True}}, "steps must be an integer"),
        (RECORD, {"dp-gate-dp-sgd": TERMS | {"sampling-rate": 2}}, "sampling_rate must"),
        (RECORD, {"dp-gate-dp-sgd": TERMS | {"noise-multiplier": 0}}, "noise_multiplier must"),
        (RECORD, {"dp-gate-run-config": {1: 2}}, "dp-gate-run-config must be lines like"),
        (RECORD, {"dp-gate-message-config": {"lr": [1]}}, "must give 'lr' a text, a number"),
        (DISTRIBUTED, {"dp-max-epsilon": None}, "needs a line `dp-max-epsilon: 4.0`"),
        (DISTRIBUTED, {"dp-gate-noise-multiplier": 4.0}, "dp-gate-noise-multiplier says nothing"),
        (DISTRIBUTED, {"dp-ledger-path": "sqlite:////srv/l.db"}, "must be a file"),
    ],
)
def test_what_can_t_be_meant_is_refused(
    tmp_path: Path, keys: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(NodeConfigError, match=re.escape(said)):
        read(tmp_path, keys, **changed)


def test_a_node_without_a_gate_refuses_such_a_policy(tmp_path: Path) -> None:
    """Nothing there would keep to it."""
    read(tmp_path, LOCAL)
    with pytest.raises(NodeConfigError, match="'dp-gate-answer-after' is no key of a policy"):
        NodeConfig.of({"dp-policy-path": str(tmp_path / "policy.yaml")})
    for key in GATE_KEYS:
        with pytest.raises(NodeConfigError, match=f"'{key}' is no key of fl-dp"):
            NodeConfig.of({key: LOCAL.get(key, 1.0)})


def test_the_page_has_a_row_for_each_key_and_names_each_other_that_is_taken() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
    for key in GATE_KEYS:
        assert f"| `{key}` |" in page
    taken = POLICY_KEYS.keys() - set(KEYS_OF_APPS) - {"dp-policy-path"} | set(KEYS_OF_DATA)
    assert {key for key in POLICY_KEYS if f"`{key}`" in page} == taken


def test_the_policies_of_the_page_can_be_meant(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
    texts = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for text, promise in zip(texts, (GatePromise.LOCAL, GatePromise.RECORD), strict=True):
        file = tmp_path / "policy.yaml"
        file.write_text(text)
        assert GatePolicy.read(file).keys.promise is promise
