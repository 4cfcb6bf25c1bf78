"""What ends a run on purpose is told in one line: under `flwr run`, and in a script."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from local_grid import LocalGrid, answer_with_update
from trainings import plan_of, record

from fl_dp import PrivacyLedger, server_app
from fl_dp.app import server, simulate
from fl_dp.app.compose import compose_settings
from fl_dp.app.overrides import ConfigError
from fl_dp.app.workload import check_data
from fl_dp.strategies import DPFedAvg, RosterTooLarge


def logged(error: Exception) -> str:
    """Return what Flower's log says of an error that ends a run, as Flower itself logs it."""
    flower, said = logging.getLogger("flwr"), io.StringIO()
    handler = logging.StreamHandler(said)
    flower.addHandler(handler)
    try:
        raise error
    except type(error) as raised:
        flower.log(logging.ERROR, "%s raised an exception", "Simulation", exc_info=raised)
    finally:
        flower.removeHandler(handler)
    return said.getvalue()


def test_too_many_nodes_under_flwr_run_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RosterTooLarge("the plan declares 20 clients, but 30 nodes are connected")

    def train(grid: Grid, settings: object, run_id: str) -> None:
        raise refused

    monkeypatch.setattr(server, "train", train)
    grid = LocalGrid(answer_with_update([]), 0)
    with pytest.raises(RosterTooLarge):
        server_app.app(grid, Context(1, 0, {}, RecordDict(), {}))
    assert logged(refused).splitlines() == [f"Simulation raised an exception: {refused}"]
    assert "Traceback" in logged(ValueError("a mistake in somebody's code"))


def test_what_a_task_brings_is_said_under_flwr_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "train", lambda *_, **__: None)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    config = {"hydra-overrides": "task=fashion_mnist"}
    grid = LocalGrid(answer_with_update([]), 0)
    with caplog.at_level(logging.INFO, logger="flwr.fl_dp"):
        server_app.app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    assert "task=fashion_mnist with model=logistic brings client.learning_rate=0.1" in caplog.text


def test_a_relative_folder_under_flwr_run_is_one_line() -> None:
    grid = LocalGrid(answer_with_update([]), 0)
    config = {"hydra-overrides": "output_dir=foo"}
    with pytest.raises(ConfigError, match="output_dir must be absolute, got 'foo'") as refused:
        server_app.app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    assert len(logged(refused.value).splitlines()) == 1


def failing(error: Exception) -> ServerApp:
    """Return an app that fails."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        raise error

    return app


def answer(message: Message, context: Context) -> Message:
    """Answer nothing."""
    raise AssertionError("nobody is asked")


def test_a_script_ends_in_one_line_where_nodes_and_plan_do_not_fit() -> None:
    with pytest.raises(SystemExit, match=r"^error: 30 nodes are connected$"):
        simulate(failing(RosterTooLarge("30 nodes are connected")), answer, num_nodes=30)


class Client(NumPyClient):
    """A client, which is no app."""


def training(folder: Path, initial: Any = None, **changes: Any) -> ServerApp:
    """Return an app that trains ten clients by the README's line, or what is written instead."""
    app = ServerApp()
    usual: dict[str, Any] = {
        "epsilon": 8,
        "rounds": 1,
        "num_clients": 10,
        "sampling_rate": 0.5,
        "clipping_norm": 1.0,
        "ledger": folder / "ledger.db",
    }

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = DPFedAvg.with_budget(**(usual | changes))
        strategy.start(grid, record(w=np.zeros(3)) if initial is None else initial)

    return app


def never(seconds: float) -> None:
    raise AssertionError("nobody waits for what can't come")


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"num_clients": -5}, {}, "num_clients .*-5"),
        ({"epsilon": "3"}, {}, "epsilon must be a number, got '3'"),
        ({"ledger": ":memory:"}, {}, "':memory:': name a file"),
        ({"ledger": "/"}, {}, "/ is a folder: name the ledger's file"),
        ({"initial": [np.zeros(3)]}, {}, "initial_arrays must be ArrayRecord, got .*list"),
        ({}, {"num_nodes": 20}, "20 nodes are connected.*num_nodes"),
        ({}, {"num_nodes": 0}, "num_nodes must be .*0"),
        ({}, {"client": Client}, r"class Client: write numpy_client_app\(lambda context: Client"),
    ],
    ids=lambda value: re.sub(" at 0x.*>", ">", str(value)),  # an address differs by process
)
def test_a_mistake_in_a_script_s_lines_ends_in_one_line_and_spends_nothing(
    changes: dict[str, Any],
    arguments: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_dp.clock.sleep", never)
    with pytest.raises(SystemExit, match=f"^error: .*{said}") as ended:
        simulate(training(tmp_path, **changes), **({"client": answer} | arguments))
    assert "\n" not in str(ended.value)
    for file in tmp_path.iterdir():
        with PrivacyLedger.read(file) as ledger:
            assert not ledger.history


def failing_node(message: Message, context: Context) -> Message:
    """Fail whatever is asked: then the rehearsal ends the run."""
    raise ZeroDivisionError


plain_app = ClientApp()  # knows no rehearsal: then its first round ends the run
plain_app.train()(failing_node)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (failing_node, "^error: node 1 can't say what it will answer with"),
        (
            plain_app,
            r"^error: every client of a round failed \(20 in all\), so the simulation ends",
        ),
    ],
)
def test_a_script_ends_in_one_line_and_a_traceback_where_no_node_can_contribute(
    answer: Callable[[Message, Context], Message], said: str, tmp_path: Path
) -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # So many clients that one noisy count tells that there is nobody.
        plan = plan_of(20, noise_multiplier=0.5, rounds=3, contribution_check=True)
        with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
            strategy = DPFedAvg(plan=plan, ledger=ledger)
            strategy.start(grid, record(w=np.zeros(3, np.float32)), num_rounds=3)

    with pytest.raises(SystemExit, match=said) as ended:
        simulate(app, answer, num_nodes=20)
    line, *traceback = str(ended.value).splitlines()
    assert "nothing was charged" in line or "stays spent" in line
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ZeroDivisionError"
    assert traceback.count(traceback[0]) == 1


def test_a_mistake_in_a_script_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        simulate(failing(ZeroDivisionError()), answer, num_nodes=1)


def test_a_partition_that_leaves_most_clients_without_records_is_refused_in_one_line() -> None:
    thin = compose_settings(["task.partition=dirichlet", "task.alpha=0.0001"])
    with pytest.raises(ValueError, match=r"leaves \d+ of \d+ clients without records") as refused:
        check_data(thin)
    assert "\n" not in str(refused.value)
    check_data(compose_settings(["task.partition=dirichlet"]))
