"""The page on upgrades names the versions of the code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from flat_plans import flat_plan

from fl_dp import PrivacyBudget
from fl_dp.accounting import OwnRatesSampling, VisibleSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.app import checkpoints
from fl_dp.ledger.entries import SCHEMA
from fl_dp.ledger.node import NODE_SCHEMA
from fl_dp.plan import SecureSum
from fl_dp.plan.as_json import KINDS
from fl_dp.plan.banded_noise import Banded
from fl_dp.protocol import message_keys
from fl_dp.protocol.flower_versions import TESTED
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, SumInstruction
from fl_dp.protocol.introduction import NodeIdentity
from fl_dp.protocol.message_keys import WIRE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/upgrades.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ")
][1:]


def test_each_row_names_the_version_of_the_code() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    pythons = checks["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    assert [version for _, version, *_ in ROWS] == [
        str(WIRE),
        str(SCHEMA),
        str(NODE_SCHEMA),
        str(checkpoints._VERSION),
        " and ".join(TESTED),
        f"{pythons[0]} to {pythons[-1]}",
    ]


def digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()[:12]


def names_in(written: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    for name, value in written.items():
        yield inside + name
        if isinstance(value, dict):
            yield from names_in(value, f"{inside}{name}.")


def test_a_plan_that_is_written_with_other_fields_has_another_schema() -> None:
    """When this fails, an older ledger is read no more: raise `SCHEMA`, and change both here."""
    budget = PrivacyBudget(epsilon=4.0, delta=1e-5)
    sizes: dict[str, Any] = {"rounds": 2, "num_clients": 10, "clipping_norm": 1.0}
    own = OwnRatesSampling.at(0.2, budgets=(2.0, 4.0), shares=(0.5, 0.5))
    noised = sizes | {"noise_multiplier": 9.0}
    everybody, shares = {"sampling_rate": 1.0, **noised}, SecureSum()
    plans = [
        flat_plan(budget, sampling_rate=0.5, **noised),
        flat_plan(budget, sampling=VisibleSampling(cohort=2), **noised),
        flat_plan(
            budget,
            sampling=VisibleSampling(cohort=2, separation=2),
            correlation=Banded(coefficients=(4096, 2000)),
            **noised,
        ),
        flat_plan(budget, sampling=BufferedSampling(cohort=2), **noised),
        flat_plan(budget, sampling=own, **sizes).calibrated(),
        flat_plan(budget, client_scheme="laplace", **everybody),
        flat_plan(budget, secure_sum=shares, **everybody),
        flat_plan(budget, secure_sum=shares, nodes=5, units_per_node=4, **everybody),
    ]
    assert {plan.kind for plan in plans} == set(KINDS)
    written = digest(f"{plan.kind}.{name}" for plan in plans for name in names_in(plan.to_dict()))
    assert (SCHEMA, written) == (14, "ef9ca819c3e6")


def test_messages_with_other_fields_have_another_version() -> None:
    """When this fails, the other end has to follow: raise `WIRE`, and change both here."""
    kinds = (RoundInstruction, NoiseInstruction, SumInstruction, NodeIdentity)
    of_kinds = (f"{kind.__name__}.{field.name}" for kind in kinds for field in fields(kind))
    of_keys = (f"{name}={value}" for name, value in vars(message_keys).items() if name.isupper())
    crossing = digest(
        iter([*of_kinds, *(name for name in of_keys if not name.startswith("WIRE="))])
    )
    assert (WIRE, crossing) == (7, "738d5c071eef")
