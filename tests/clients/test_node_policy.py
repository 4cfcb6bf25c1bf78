"""A message that asks for less than the node's owner requires is refused before anything runs."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_dp.clients import numpy_client_app
from fl_dp.clients.owner import app_verification, mod_host, node_policy
from fl_dp.codec import encode_text
from fl_dp.ledger import NodeLedger
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, SumInstruction
from fl_dp.protocol.message_keys import (
    IDENTITY_ACTION,
    INSTRUCTION_KEY,
    RECORD_PLAN_KEY,
    STATISTIC_ACTION,
    STATISTIC_QUERY_KEY,
)
from fl_dp.protocol.secure_sum_messages import KEY_ACTION, SECURE_SUM_KEY, SUM_KEY

MODEL = {"w": np.zeros(3, np.float32)}
NOISED = RoundInstruction(
    server_round=1,
    client_noise=NoiseInstruction(
        scheme="gaussian", noise_multiplier=5.0, clipping_norm=0.5, epsilon=3.0, delta=1e-5
    ),
)
PLAIN = RoundInstruction(server_round=1)
RECORDS = {RECORD_PLAN_KEY: "{}"}


@pytest.fixture
def owned(node: Any, told: Any, tmp_path: Path) -> Any:
    """Make a node with a ledger and a cap, and the client that it would train with."""

    def make(**config: Any) -> Any:
        client = told(1.0)
        base = {"dp-ledger-path": str(tmp_path / "ledger.db"), "dp-max-epsilon": 4.0}
        app = numpy_client_app(
            lambda context: client, statistics_fn=lambda *_: client.evaluate(None, None)
        )
        return node(app, base | config), client

    return make


TERMS = {SECURE_SUM_KEY: ConfigRecord({"terms": "{}"})}


def summed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a message with the terms of a secure sum."""
    model = ArrayRecord({name: Array(each) for name, each in MODEL.items()})
    return {"model": model, "config": ConfigRecord(config)} | TERMS


def refused(reply: Any, kind: str = "PolicyRefusal") -> bool:
    return bool(reply.has_error() and reply.error.reason == kind)


@pytest.mark.parametrize("instruction", [None, PLAIN])
@pytest.mark.parametrize(
    "asked", [{}, {"dp-require-privacy": "any"}, {"dp-require-privacy": "record"}]
)
def test_training_without_protection_is_refused(owned: Any, asked: Any, instruction: Any) -> None:
    here, client = owned(**asked)
    assert refused(here.train(MODEL, instruction))
    assert client.calls == 0


@pytest.mark.parametrize("asked", ["any", "local", "record"])
def test_evaluations_and_statistics_are_refused(owned: Any, asked: str) -> None:
    here, client = owned(**{"dp-require-privacy": asked})
    for kind, key in [
        ("evaluate", "any"),
        (f"query.{STATISTIC_ACTION}", STATISTIC_QUERY_KEY),
    ]:
        assert refused(here.ask(kind, {"config": ConfigRecord({key: "{}"})}))
    assert client.calls == 0


@pytest.mark.parametrize("asked", ["any", "distributed"])
def test_what_has_terms_never_leaves_in_the_clear(owned: Any, asked: str) -> None:
    """Terms pass the policy; whatever they are in is then summed securely, or refused."""
    here, client = owned(**{"dp-require-privacy": asked, "dp-secagg-roster": "/srv/roster.json"})
    for kind, key in [
        ("train", "any"),
        ("evaluate", "any"),
        (f"query.{STATISTIC_ACTION}", STATISTIC_QUERY_KEY),
    ]:
        reply = here.ask(kind, summed({key: "{}"}))
        assert reply.has_error() and reply.error.reason != "PolicyRefusal"
    assert client.calls == 0


@pytest.mark.parametrize("asked", [{}, {"dp-require-privacy": "any"}])
def test_a_cap_alone_takes_no_secure_sum_of_nodes_that_the_server_can_make_up(
    owned: Any, asked: Any
) -> None:
    """The node would charge the shares of noise of nodes that do not exist."""
    here, client = owned(**asked)
    assert refused(here.ask("train", {"config": ConfigRecord({})} | TERMS))
    assert client.calls == 0


@pytest.mark.parametrize(
    ("asked", "offer"),
    [("record", RECORDS), ("local", {INSTRUCTION_KEY: encode_text(NOISED)})],
)
def test_a_record_that_is_dropped_before_training_offers_nothing(
    owned: Any, asked: str, offer: dict[str, Any]
) -> None:
    here, client = owned(**{"dp-require-privacy": asked})
    sums: dict[str, Any] = {key: dict(each) for key, each in TERMS.items()}
    sums[SECURE_SUM_KEY] |= offer
    told = {key: ConfigRecord(each) for key, each in sums.items()}
    assert refused(here.ask("train", {"config": ConfigRecord({})} | told))
    assert client.calls == 0


def test_a_round_that_comes_too_early_is_refused_before_it_is_charged(
    owned: Any, tmp_path: Path
) -> None:
    here, client = owned(**{"dp-min-round-interval": 900.0})
    assert not here.train(MODEL, NOISED).has_error()
    assert refused(here.train(MODEL, NOISED))
    assert client.calls == 1
    with NodeLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.spendings[0].charges == 1


def test_nothing_but_secure_sums_passes_where_they_are_required(owned: Any) -> None:
    here, client = owned(**{"dp-require-privacy": "distributed"})
    for instruction, config in ((PLAIN, {}), (NOISED, {}), (PLAIN, RECORDS)):
        assert refused(here.train(MODEL, instruction, **config))
    assert client.calls == 0
    asked = ConfigRecord({"terms": json.dumps({"run": 7, "epoch": 0})})
    assert not refused(here.ask(f"query.{KEY_ACTION}", {"config": asked}))


@pytest.mark.parametrize(
    ("asked", "of_records", "passes"),
    [
        ("distributed", False, True),
        ("distributed", True, False),
        ("distributed-records", False, True),
        ("distributed-records", True, True),
        ("record", True, False),
    ],
)
def test_an_owner_says_whether_a_sum_must_hide_the_client_or_its_records(
    owned: Any, asked: str, of_records: bool, passes: bool
) -> None:
    here, client = owned(**{"dp-require-privacy": asked})
    told = RoundInstruction(server_round=1, of_records=of_records)
    reply = here.ask("train", summed({INSTRUCTION_KEY: encode_text(told)}))
    assert (reply.error.reason != "PolicyRefusal") is passes
    assert client.calls == 0


@pytest.mark.parametrize("kind", ["train", "evaluate", f"query.{STATISTIC_ACTION}"])
@pytest.mark.parametrize(
    ("asked", "unit", "passes"),
    [
        ("distributed", "client", True),
        ("distributed", "record", False),
        ("distributed-records", "record", True),
    ],
)
def test_a_sum_of_clients_that_is_charged_to_their_records_does_not_hide_the_client(
    owned: Any, kind: str, asked: str, unit: str, passes: bool
) -> None:
    """Caps of clients and of records are apart: a lying server would spend both."""
    here, _ = owned(**{"dp-require-privacy": asked})
    price = SumInstruction(rounds=3, unit=unit, neighboring_relation="replace-one")
    told = RoundInstruction(server_round=1, secure_sum=price)
    innocent = json.dumps(asdict(replace(price, unit="client")))
    config: dict[str, Any] = {INSTRUCTION_KEY: encode_text(told), SUM_KEY: innocent}
    if kind != "train":  # charged by the other key
        told = replace(told, secure_sum=replace(price, unit="client"))
        config = {INSTRUCTION_KEY: encode_text(told), SUM_KEY: json.dumps(asdict(price))}
    reply = here.ask(kind, summed(config))
    assert (reply.error.reason != "PolicyRefusal") is passes


@pytest.mark.parametrize(
    ("asked", "instruction", "config", "trains"),
    [
        ("local", NOISED, {}, True),
        ("record", PLAIN, RECORDS, True),
        ("any", NOISED, {}, True),
        ("any", PLAIN, RECORDS, True),
        ("none", PLAIN, {}, True),
        ("record+local", NOISED, RECORDS, True),
        ("record+local", NOISED, {}, False),
        ("record+local", PLAIN, RECORDS, False),
        ("record", NOISED, {}, False),
        ("local", PLAIN, RECORDS, False),
    ],
)
def test_training_passes_that_offers_what_is_required(
    owned: Any, asked: str, instruction: Any, config: dict[str, Any], trains: bool
) -> None:
    here, client = owned(**{"dp-require-privacy": asked})
    assert refused(here.train(MODEL, instruction, **config)) is not trains
    assert client.calls == trains


def test_a_bad_configuration_answers_nothing(node: Any, told: Any) -> None:
    client = told(1.0)
    here = node(numpy_client_app(lambda context: client), {"dp-require-privcy": "record"})
    assert refused(here.train(MODEL, NOISED), "NodeConfigError")
    assert refused(here.ask("evaluate", {"config": ConfigRecord()}), "NodeConfigError")
    name = here.ask(f"query.{IDENTITY_ACTION}", {"config": ConfigRecord()})
    assert refused(name, "NodeConfigError")
    assert client.calls == 0


# Which app it is that refuses: one that somebody whom the owner trusts has signed?


def test_where_unverified_apps_run_nothing_is_answered(
    owned: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mod_host, "apps_are_verified", lambda: False)
    here, client = owned()
    with caplog.at_level(logging.ERROR):
        assert refused(here.train(MODEL, NOISED))
    assert client.calls == 0
    assert "--trusted-entities" in caplog.text  # in the node's own log

    allowing, client = owned(**{"dp-allow-unverified-apps": True})
    assert not refused(allowing.train(MODEL, NOISED))
    assert client.calls == 1


def test_where_it_can_not_be_seen_the_log_says_once_what_to_do(
    owned: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mod_host, "apps_are_verified", lambda: None)
    node_policy._log_once_how_to_verify.cache_clear()
    here, client = owned()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not refused(here.train(MODEL, NOISED))
    assert client.calls == 2
    assert caplog.text.count("--trusted-entities") == 1


def ancestors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Put this process below a SuperExec, below a SuperNode that was started like this."""
    started = {7: ("flower-superexec",), 6: command}
    for pid, words in started.items():
        folder = tmp_path / str(pid)
        (folder / "cwd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (name) 3) S {pid - 1 if pid > 6 else 0} 1")
        (folder / "cmdline").write_text("\0".join(words) + "\0")
    monkeypatch.setattr(app_verification, "_PROCESSES", tmp_path)
    monkeypatch.setattr(os, "getppid", lambda: 7)


@pytest.mark.parametrize(
    ("options", "verified"),
    [
        ((), False),
        (("--trusted-entities", "keys.yaml"), True),
        (("--trusted", "keys.yaml"), True),  # as argparse takes it
        (("--trusted-entities", "empty.yaml"), False),  # as Flower takes it
    ],
)
def test_the_supernode_s_command_line_tells_whether_it_verifies_apps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], verified: bool
) -> None:
    ancestors(tmp_path, monkeypatch, "/bin/python", "/bin/flower-supernode", "--insecure", *options)
    (tmp_path / "6" / "cwd" / "keys.yaml").write_text("fpk_1: ssh-ed25519 AAAA owner\n")
    (tmp_path / "6" / "cwd" / "empty.yaml").write_text("{}\n")
    assert app_verification.apps_are_verified() is verified


def test_a_supernode_behind_the_guard_is_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-P", "-m", "of_a_deployment.supernode")
    ancestors(tmp_path, monkeypatch, *command, "--trusted-entities", "keys.yaml")
    (tmp_path / "6" / "cwd" / "keys.yaml").write_text("fpk_1: ssh-ed25519 AAAA owner\n")
    assert app_verification.apps_are_verified() is True
    (tmp_path / "6" / "cmdline").write_text("\0".join(command) + "\0")
    assert app_verification.apps_are_verified() is False


def test_without_a_supernode_above_it_can_not_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ancestors(tmp_path, monkeypatch, "/bin/bash", "--trusted-entities")
    assert app_verification.apps_are_verified() is None


def test_nothing_is_answered_once_the_permission_has_ended(owned: Any) -> None:
    for end, ended in [("2020-01-31", True), ("2999-01-31", False)]:
        here, client = owned(**{"dp-policy-expires": end, "dp-require-privacy": "none"})
        assert refused(here.train(MODEL, PLAIN)) == ended
        assert client.calls == (0 if ended else 1)
        assert not here.ask(f"query.{IDENTITY_ACTION}", {"config": ConfigRecord({})}).has_error()


@pytest.mark.parametrize("asked", ["none", "local"])
def test_nothing_is_answered_once_every_use_was_revoked(
    owned: Any, tmp_path: Path, asked: str
) -> None:
    here, client = owned(**{"dp-require-privacy": asked})
    assert not here.train(MODEL, NOISED).has_error()
    calls = client.calls
    with NodeLedger.open(tmp_path / "ledger.db") as ledger:
        ledger.revoke()
    assert refused(here.train(MODEL, NOISED))
    assert refused(here.ask("evaluate", {"config": ConfigRecord({"any": "{}"})}))
    assert client.calls == calls


def test_a_ledger_that_can_not_be_read_revokes_too(owned: Any, tmp_path: Path) -> None:
    here, client = owned(**{"dp-require-privacy": "none"})
    (tmp_path / "ledger.db").write_bytes(b"no database at all, but long enough to be one" * 30)
    assert here.train(MODEL, PLAIN).has_error()
    assert client.calls == 0
