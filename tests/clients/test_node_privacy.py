"""What a node's owner allows: the server has no say in it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fl_dp import PrivacyBudget
from fl_dp.clients.owner.node_privacy import NodePrivacy, in_simulation, simulated_nodes
from fl_dp.ledger.node import RunLimit
from fl_dp.protocol.instruction import NoiseInstruction
from fl_dp.protocol.message_keys import SIMULATED_LEDGERS_KEY

ASKED = PrivacyBudget(epsilon=3.0, delta=1e-5)
RUN = 1


def node(config: dict[str, Any], message: dict[str, Any] | None = None, **options: Any) -> Any:
    context = Context(1, 77, config, RecordDict(), {})
    return NodePrivacy.from_context(context, message or {}, **options)


ENGINE = "flwr.simulation.ray_transport.ray_actor"


def started_ray(*, actor_of: str | None) -> Any:
    """What `ray` is in a process: of an actor whose class a module has, or of none."""
    descriptor = SimpleNamespace(module_name=actor_of)
    process = SimpleNamespace(
        get_actor_id=lambda: None if actor_of is None else "0a",
        current_actor=SimpleNamespace(_ray_actor_creation_function_descriptor=descriptor),
    )
    return SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: process)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker of Flower's simulation engine."""
    monkeypatch.setitem(sys.modules, "ray", started_ray(actor_of=ENGINE))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a SuperNode's process."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_without_keys_there_is_no_ledger_and_no_cap() -> None:
    assert node({"partition-id": 3}) == NodePrivacy(ledger=None, source="partition-3", run=RUN)
    assert "partition" not in node({}).source  # all that one ledger holds is one


@pytest.mark.usefixtures("simulated")
def test_in_a_simulation_the_units_that_a_node_hosts_are_different_data() -> None:
    config = {"dp-dataset-name": "ward"}
    sources = [node(config, unit=unit).source for unit in (0, 1, 2)]
    assert sources == ["ward", "ward/1", "ward/2"]


@pytest.mark.usefixtures("real")
def test_a_server_can_not_give_a_real_node_new_budgets_by_numbering_units() -> None:
    assert {node({"dp-dataset-name": "ward"}, unit=unit).source for unit in (0, 1, 2)} == {"ward"}


@pytest.mark.usefixtures("real")
def test_nodes_are_virtual_only_while_their_process_says_so() -> None:
    with pytest.raises(KeyError), simulated_nodes():
        assert in_simulation()
        raise KeyError
    assert not in_simulation()


def test_a_real_node_does_not_write_where_the_server_says(tmp_path: Path) -> None:
    message = {SIMULATED_LEDGERS_KEY: str(tmp_path)}
    assert not in_simulation()
    assert node({"partition-id": 3}, message).ledger is None


@pytest.mark.usefixtures("simulated")
def test_in_a_simulation_each_node_has_a_ledger_in_the_named_folder(tmp_path: Path) -> None:
    message = {SIMULATED_LEDGERS_KEY: str(tmp_path)}
    assert in_simulation()
    assert node({"partition-id": 3}, message).ledger == str(tmp_path / "node-3.db")
    assert node({}, message).ledger == str(tmp_path / "node-77.db")
    assert node({"partition-id": 3}, {}).ledger is None


@pytest.mark.usefixtures("simulated")
def test_the_owner_s_ledger_wins_over_the_server_s_folder(tmp_path: Path) -> None:
    message = {SIMULATED_LEDGERS_KEY: str(tmp_path)}
    assert node({"dp-ledger-path": "/data/l.db"}, message).ledger == "/data/l.db"


def test_ray_that_is_loaded_but_not_started_is_no_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert not in_simulation()


@pytest.mark.parametrize("actor_of", [None, "their.own.actors"])
def test_a_real_node_that_starts_ray_itself_is_no_simulation(
    actor_of: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the process that starts it nor an actor of the node's app loses its protection."""
    monkeypatch.setitem(sys.modules, "ray", started_ray(actor_of=actor_of))
    assert not in_simulation()
    assert node({}, {SIMULATED_LEDGERS_KEY: "/the/server/s/folder"}).ledger is None


def test_the_engine_s_workers_are_where_this_version_of_flower_has_them() -> None:
    """In a process of its own, as it loads Ray; real workers are in the tests of simulations."""
    asked = (
        f"from {ENGINE} import ClientAppActor; "
        "print(ClientAppActor.__ray_metadata__.actor_creation_function_descriptor.module_name)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ENGINE


@pytest.mark.parametrize(
    ("caps", "smaller"),
    [
        ({}, ASKED),
        ({"dp-max-epsilon": 1.0}, PrivacyBudget(epsilon=1.0, delta=1e-5)),
        ({"dp-max-epsilon": 5.0}, ASKED),
        ({"dp-max-epsilon": 5.0, "dp-max-delta": 1e-7}, PrivacyBudget(epsilon=3.0, delta=1e-7)),
        ({"dp-max-epsilon": 5.0, "dp-max-delta": 1e-2}, ASKED),
        ({"dp-max-epsilon": 2, "dp-max-delta": 1e-6}, PrivacyBudget(epsilon=2.0, delta=1e-6)),
    ],
)
def test_the_cap_and_what_a_run_asks_for_are_two_limits(
    caps: dict[str, Any], smaller: PrivacyBudget
) -> None:
    read = node({"dp-ledger-path": "/data/l.db"} | caps)
    asked = NoiseInstruction(
        scheme="gaussian",
        noise_multiplier=1.0,
        clipping_norm=1.0,
        epsilon=ASKED.epsilon,
        delta=ASKED.delta,
    )
    assert read.limit_of_noise(asked) == RunLimit(run=f"run {RUN}", budget=ASKED)
    assert read.limit(ASKED, training="ab") == RunLimit(run="training ab", budget=ASKED)
    assert read.budget_of_noise(asked) == smaller
    nameless = replace(asked, epsilon=None, delta=None)
    if read.cap is None:
        with pytest.raises(ValueError, match="names no budget"):
            read.limit_of_noise(nameless)
    else:
        assert read.limit_of_noise(nameless) is None
        assert read.budget_of_noise(nameless) == read.cap
