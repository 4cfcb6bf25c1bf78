"""`NumPyClient` apps and the strategies of `flwr.server`, which know nothing of a gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from gated_site import App, Arrived, Gates, Site, replying
from local_grid import LocalGrid

NODES, ROUNDS, SIZE = 3, 2, 5_000
LITTLE = {"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12}  # which can be read through
ACCURACY, LOSS = {"accuracy": [0, 1]}, {"loss": [0, 4]}


class Adding(NumPyClient):
    """Adds to the first array, and tells more than it should."""

    def __init__(self, update: float) -> None:
        self._update = update

    def fit(self, parameters: Any, config: Any) -> Any:
        assert config == {"lr": 0.1}
        moved = [parameters[0] + self._update, *parameters[1:]]
        return moved, 4711, {"accuracy": 0.75, "patient": "4711"}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 1.0, 4711, {"accuracy": 0.75, "age": 47.11}


def client(update: float) -> App:
    app = ClientApp(client_fn=lambda context: Adding(update).to_client())
    return lambda message: [app(message, Context(1, 1, {}, RecordDict(), {}))]


class Grid(LocalGrid):
    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)


class Server:
    """Flower's older server, and what it had to see.

    Attributes:
        models: Of each round, the mean.
        metrics: Of the trainings, as replies had them.
        evaluated: Of the evaluations.
    """

    def __init__(self, gates: Gates, rounds: int, model: list[Any], **options: Any) -> None:
        self.models: list[list[Any]] = []
        self.metrics: list[Any] = []
        self.evaluated: list[Any] = []

        def keep(server_round: int, parameters: Any, config: Any) -> None:
            self.models.append(parameters)

        def mean(kept: list[Any]) -> Callable[[list[Any]], dict[str, Any]]:
            def aggregate(told: list[Any]) -> dict[str, Any]:
                kept.extend(told)
                return {}

            return aggregate

        def server_fn(context: Context) -> ServerAppComponents:
            strategy = FedAvg(
                min_available_clients=NODES,
                min_fit_clients=NODES,
                initial_parameters=ndarrays_to_parameters(model),
                on_fit_config_fn=lambda server_round: {"lr": 0.1},
                evaluate_fn=keep,
                fit_metrics_aggregation_fn=mean(self.metrics),
                evaluate_metrics_aggregation_fn=mean(self.evaluated),
                **options,
            )
            return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

        app = ServerApp(server_fn=server_fn)
        app(Grid(gates, NODES), Context(1, 1, {}, RecordDict(), {}))


def gates_of(folder: Path, *updates: float, **policy: Any) -> Gates:
    gates = Gates(folder, NODES, **policy)
    for here, update in zip(gates.sites, updates, strict=True):
        here.app = client(update)
    return gates


def test_a_training_of_the_older_api_has_the_noise_that_is_charged(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, *[0.0] * NODES)
    server = Server(gates, ROUNDS, [np.zeros(SIZE)], fraction_evaluate=0.0)
    values = server.models[-1][0]
    # Noise of deviation 2 at each of three sites, in two rounds; six standard deviations.
    deviation = 2.0 * np.sqrt(ROUNDS / NODES)
    assert values.std() == pytest.approx(deviation, rel=6 / np.sqrt(2 * SIZE))
    for here in gates.sites:
        assert len(here.seen) == here.charges() == ROUNDS
    # No weight of an app's own, and no metric.
    assert server.metrics == [(1, {})] * NODES * ROUNDS


def test_updates_are_clipped_and_arrive_under_the_names_of_their_arrays(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, 0.3, -0.6, 1e6, **LITTLE)
    model = [np.zeros(1), np.full((2, 2), 7.0, np.float32)]
    server = Server(gates, 1, model, fraction_evaluate=0.0)
    first, second = server.models[-1]
    # Eight standard deviations of the mean of three.
    assert first == pytest.approx([(0.3 - 0.6 + 1.0) / 3], abs=8e-4)
    assert second == pytest.approx(np.full((2, 2), 7.0), abs=8e-4)


def test_numbers_that_the_owner_names_leave_noised(tmp_path: Path) -> None:
    named = {"dp-gate-metrics": {"accuracy": [0, 1]}, "dp-gate-evaluation": ACCURACY | LOSS}
    gates = gates_of(tmp_path, *[0.0] * NODES, **LITTLE, **named)
    server = Server(gates, 1, [np.zeros(3)])
    # Six standard deviations: a twentieth of a range at least, and of an evaluation 1e-4 of it.
    assert server.metrics == [(1, {"accuracy": pytest.approx(0.75, abs=0.3)})] * NODES
    assert server.evaluated == [(1, {"accuracy": pytest.approx(0.75, abs=0.01)})] * NODES


def asked(here: Site, kind: str, records: dict[str, Any]) -> Arrived:
    here.server.ask(kind, records)
    here.step()
    here.step()
    return here.server.arrived[-1]


def fit(here: Site) -> Arrived:
    arrays = ndarrays_to_parameters([np.zeros(3)])
    return asked(here, "train", records_of("fitins", arrays))


def records_of(prefix: str, parameters: Any) -> dict[str, Any]:
    arrays = ArrayRecord(parameters_to_ndarrays(parameters))
    return {f"{prefix}.parameters": arrays, f"{prefix}.config": ConfigRecord({"lr": 0.1})}


def test_an_evaluation_without_its_loss_is_refused_before_it_is_charged(site: Any) -> None:
    here = site(client(0.0), **{"dp-gate-evaluation": ACCURACY})
    parameters = ndarrays_to_parameters([np.zeros(3)])
    arrived = asked(here, "evaluate", records_of("evaluateins", parameters))
    assert arrived.message.error.reason == "PolicyRefusal"
    assert not here.seen
    assert here.charges() == 0


HOSTILE: dict[str, App] = {
    "a status of its own": replying(
        lambda message: {
            "fitres.parameters": message.content["fitins.parameters"],
            "fitres.num_examples": MetricRecord({"num_examples": 4711}),
            "fitres.metrics": ConfigRecord({}),
            "fitres.status": ConfigRecord({"code": 4711, "message": "patient 4711"}),
        }
    ),
    "names of today's": replying(lambda message: {"arrays": message.content["fitins.parameters"]}),
    "nothing": replying(lambda message: {}),
    "no answer": lambda message: [],
    "NaN": client(np.nan),
}


@pytest.mark.parametrize("app", HOSTILE.values(), ids=HOSTILE)
def test_of_a_hostile_reply_the_form_of_all_answers_arrives(site: Any, app: App) -> None:
    arrived = fit(site(app))
    content = arrived.message.content
    assert set(content) == {
        "fitres.parameters",
        "fitres.num_examples",
        "fitres.metrics",
        "fitres.status",
    }
    assert dict(content["fitres.num_examples"]) == {"num_examples": 1}
    assert dict(content["fitres.metrics"]) == {}
    assert dict(content["fitres.status"]) == {"code": 0, "message": ""}
    # One standard normal exceeds 8 in absolute value once in 1e15 runs.
    assert 0.0 < np.abs(arrived.arrays["0"]).max() < 16.0


@pytest.mark.parametrize("kind", ["get_parameters", "get_properties"])
def test_what_the_older_api_asks_besides_is_refused(site: Any, kind: str) -> None:
    here = site(client(0.0))
    arrived = asked(here, kind, {f"{kind}ins.config".replace("_", ""): ConfigRecord({})})
    assert arrived.message.error.reason == "PolicyRefusal"
    assert not here.seen
