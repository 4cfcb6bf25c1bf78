"""Files that somebody put where fl-dp reads: shown, read, or refused by the documented error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import yaml
from flat_plans import noised_plan
from hostile import VALUES, cases, changed, damaged, damaged_bytes, text_of
from ledger_files import fresh_path
from sweep_results import RESULT
from written_runs import write_run

from fl_dp import PrivacyLedger
from fl_dp.app.checkpoints import checkpoint_anchor
from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.keys import all_keys
from fl_dp.app.run_folder import RunFolder
from fl_dp.clients.owner.node_config import NodeConfig, NodeConfigError
from fl_dp.ledger import LedgerCorrupted, SpentLedger
from fl_dp.secagg import Roster
from fl_dp.statement import privacy_statement, read_statement
from fl_dp.statement.check import statement_differences, statement_page
from fl_dp.terminal.results import read_results, write_results

POLICY = {
    "dp-max-epsilon": 4.0,
    "dp-max-delta": 1e-5,
    "dp-ledger-path": "/srv/private/ledger.db",
    "dp-require-privacy": "record",
    "dp-policy-expires": "2099-01-31",
    "dp-unit-name": "north",
    "dp-data-path": "/srv/clinic",
    "dp-allow-unverified-apps": True,
}


# A node's owner.


@cases(400)
def test_a_node_s_configuration_is_read_or_refused(rng: Random) -> None:
    with suppress(NodeConfigError):
        given = changed(POLICY, rng)
        NodeConfig.of(given if isinstance(given, dict) else {})


@cases(200)
def test_a_policy_s_file_is_read_or_refused(rng: Random) -> None:
    with fresh_path() as path:
        file = path.with_name("policy.yaml")
        text = yaml.safe_dump(changed(POLICY, rng))
        file.write_text(text if rng.random() < 0.5 else damaged(text, rng), errors="replace")
        before = file.read_bytes()
        with suppress(NodeConfigError):
            NodeConfig.of({"dp-policy-path": str(file)})
        assert file.read_bytes() == before


@cases(200)
def test_a_roster_is_read_or_refused(rng: Random) -> None:
    members = [
        {"name": f"node-{n}", "identity": f"{n:064x}", "committee": n == 1} for n in range(3)
    ]
    with fresh_path() as path:
        file = path.with_name("roster.json")
        file.write_text(text_of({"federation": "f", "members": members}, rng), errors="replace")
        with suppress(ValueError):
            assert len(Roster.read(file).hash) == 64


# A statement beside its ledger.


@dataclass(frozen=True)
class Stated:
    """A ledger, and the statement that was computed from it."""

    ledger: SpentLedger = field(repr=False)
    statement: dict[str, Any] = field(repr=False)


@pytest.fixture(scope="module")
def stated() -> Iterator[Stated]:
    plan = noised_plan(
        2.0, delta=1e-3, rounds=3, sampling_rate=1.0, clipping_norm=1.0, num_clients=20
    )
    with fresh_path() as path:
        with PrivacyLedger.open(path, plan) as ledger:
            ledger.commit(ledger.reserve(round=1))
        with SpentLedger.read(path) as spent:
            yield Stated(spent, json.loads(json.dumps(privacy_statement(spent).to_dict())))


@cases(40)
def test_a_statement_is_compared_or_refused(stated: Stated, rng: Random) -> None:
    with fresh_path() as path:
        file = path.with_name("privacy.json")
        file.write_text(text_of(stated.statement, rng), errors="replace")
        with suppress(ValueError, LedgerCorrupted):
            found = read_statement(file)
            with suppress(ValueError, LedgerCorrupted):
                assert isinstance(statement_differences(stated.ledger, found), list)
            assert statement_page(found).startswith("#")


# Runs.


@cases(12)
def test_settings_of_a_run_are_read_or_refused(rng: Random) -> None:
    with fresh_path() as path:
        run = write_run(path.parent / "a", rounds=2)
        text = (run / "config.yaml").read_text()
        if rng.random() < 0.5:
            text = yaml.safe_dump(changed(yaml.safe_load(text), rng))
        else:
            text = damaged(text, rng)
        (run / "config.yaml").write_text(text, errors="replace")
        with suppress(ValueError, FileNotFoundError):
            RunFolder(run).read_settings()


@cases(200)
def test_results_of_a_sweep_are_read_or_refused(rng: Random) -> None:
    with fresh_path() as path:
        file = path.with_name("results.csv")
        write_results([RESULT, RESULT], file)
        file.write_bytes(damaged_bytes(file.read_bytes(), rng))
        with suppress(ValueError):
            assert all(isinstance(each.seed, int) for each in read_results(file))


@cases(150)
def test_a_checkpoint_is_read_or_refused(rng: Random) -> None:
    from safetensors.numpy import save

    header = {"version": 2, "ledger": {"entries": 3, "hash": "ab" * 32}, "model": {}}
    with fresh_path() as path:
        file = path.with_name("checkpoint.safetensors")
        raw = save({}, metadata={"fl-dp": text_of(header, rng).encode("utf-8", "replace").decode()})
        file.write_bytes(raw if rng.random() < 0.6 else damaged_bytes(raw, rng))
        with suppress(ValueError):
            checkpoint_anchor(file)


# Settings that a command line or a form is given.


@cases(12)
def test_overrides_are_composed_or_refused(rng: Random) -> None:
    key = rng.choice([*all_keys(), "x", "", "privacy"])
    value = rng.choice([str(each) for each in VALUES if len(str(each)) < 100])
    text = f"{key}={value}"
    with suppress(ConfigError):
        compose_settings([damaged(text, rng) if rng.random() < 0.3 else text])
