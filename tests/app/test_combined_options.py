"""Promise, selection, clipping, schedule and one key: the same plan, or refused, as they were.

`combined_options.json` was made once, by the code in which each option had a settings class
beside its class in the library (part 24). What it does not have was refused. A draft is compared:
calibration is the library's, and takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fl_dp.app.planning import make_plan
from fl_dp.app.settings import OPTIONS, TASK, Settings, SimulationSettings
from fl_dp.app.settings.released import MetricsSettings
from fl_dp.codec import encode
from fl_dp.plan import GroupedPlan, LocalPlan, Plan
from fl_dp.plan.as_json import KINDS

GOLDEN = Path(__file__).with_name("combined_options.json")
ROUNDS, CLIENTS = 12, 60
SELECTIONS = ("poisson", "truncated_poisson", "fixed", "public", "exponential", "buffered")
CLIPPINGS = ("fixed", "adaptive", "per_layer")
SCHEDULES = ("constant", "cosine")
KEYS: dict[str, dict[str, dict[str, Any]]] = {
    "": {},
    "all": {"selection": {"sampling_rate": 1.0}},
    "cap": {"selection": {"participation_cap": 3}},
    "coins": {"selection": {"coins_at_nodes": True}},
    "budgets": {"selection": {"budgets": [2.0, 8.0], "shares": [0.5, 0.5]}},
    "record": {"privacy": {"unit": "record", "neighboring_relation": "replace-one"}},
    "groups": {"privacy": {"groups": 3}},
    "separation": {"privacy": {"separation": 3}},
    "bits": {"secure_sum": {"bits": 8}},
    "loss": {"metrics": {"loss": [0.0, 5.0]}},
    "units": {"simulation": {"units_per_node": 4}},
    "weights": {"run": {"weight_cap": 10.0, "total_weight": 40.0}},
    "dp_sgd": {"dp_sgd": {}},
}
"""Values of keys by their group, by the name of the combination."""


def settings_with(
    mode: str, selection: str, clipping: str, schedule: str, keys: dict[str, dict[str, Any]]
) -> Settings:
    """Settings of a combination.

    Raises:
        TypeError: If an option has no such key.
        ValueError: If one is refused.
    """
    privacy, own = OPTIONS["privacy"][mode], dict(keys.get("privacy", {}))
    if mode == "distributed_records":
        own["num_records"] = 600
    if "secure_sum" in keys:
        if not hasattr(privacy, "secure_sum"):
            raise TypeError("no secure sums")
        own["secure_sum"] = replace(privacy.secure_sum, **keys["secure_sum"])
    return Settings(
        rounds=ROUNDS,
        task=TASK(num_clients=CLIENTS),
        privacy=replace(privacy, **own),
        selection=replace(OPTIONS["selection"][selection], **keys.get("selection", {})),
        clipping=OPTIONS["clipping"][clipping],
        schedule=OPTIONS["schedule"][schedule],
        dp_sgd=OPTIONS["dp_sgd"]["on" if "dp_sgd" in keys else "off"],
        metrics=MetricsSettings(**keys.get("metrics", {})),
        simulation=SimulationSettings(**keys.get("simulation", {"units_per_node": 1})),
        **keys.get("run", {}),
    )


def digest(plan: Plan) -> str:
    """The beginning of a SHA-256 of a draft's fields."""
    document = encode(plan)
    if plan.kind == "distributed_records":  # a field since the table was made
        assert document.pop("unit") == "record"
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def accepted(mode: str) -> Iterator[tuple[str, str]]:
    """Combinations of a promise that make a plan, with its digest."""
    selections = (*SELECTIONS, "own_budgets")
    for selection, clipping, schedule in product(selections, CLIPPINGS, SCHEDULES):
        for name, keys in KEYS.items():
            try:
                plan = make_plan(settings_with(mode, selection, clipping, schedule, keys))
            except (TypeError, ValueError):
                continue
            yield f"{selection} {clipping} {schedule} {name}".strip(), digest(plan)


@pytest.mark.parametrize("mode", KINDS)
def test_combined_options_make_the_plan_that_they_made(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Plan, GroupedPlan, LocalPlan):
        monkeypatch.setattr(kind, "calibrated", lambda draft: draft)
    assert dict(accepted(mode)) == json.loads(GOLDEN.read_text(encoding="utf-8"))[mode]
