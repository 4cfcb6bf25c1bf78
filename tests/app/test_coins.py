"""Coins of a client's own: what another client draws, or that it is missing, moves nobody else.

Clients train with dropout, in one process. A run's seed fixes the coins, so that a training and its
neighbour, in which client 0 has no records and draws nothing, can be compared client by client.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from kind_trainings import NODES, PLANS
from local_grid import LocalGrid, answer_with_app
from numpy.typing import NDArray
from secure_nodes import SecureNodes
from torch import nn

from fl_dp import PrivacyLedger
from fl_dp.app import train_private
from fl_dp.app.in_process import InProcessGrid, configs_of_nodes
from fl_dp.app.local.cluster_grid import Work, Worker
from fl_dp.clients import NodeUnits, noised_client_app, numpy_client_app
from fl_dp.codec import encode_text
from fl_dp.mechanisms import SecureRandom
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.plan import BufferedPlan, Plan
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import COINS_SEED_KEY, INSTRUCTION_KEY
from fl_dp.strategies import DPFedAvg, DPFedBuff

ROWS = 16
SEED = 5
KINDS = [kind for kind in PLANS if kind != "distributed_records"]  # its coins are each record's
Updates = dict[int, NDArray[np.float64]]


def trained(parameters: list[NDArray[Any]], node: int, *, rows: int) -> list[NDArray[Any]]:
    """What a client makes of a model in `rows` steps with dropout and the process's other coins."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    set_arrays(model, parameters)
    inputs = torch.linspace(-1.0, 1.0, 2 * ROWS, dtype=torch.float64).reshape(ROWS, 2) + node
    model = model.double()
    for row in range(rows):
        loss = model(inputs[row : row + 1]).square().sum() * random.random() * np.random.rand()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
    return list(get_arrays(model).values())


class Drops(NumPyClient):
    """Trains with dropout, and notes what it made of its first model."""

    def __init__(self, node: int, updates: Updates, *, missing: int | None) -> None:
        self.node, self.updates, self.missing = node, updates, missing

    def fit(self, parameters: Any, config: Any) -> Any:
        rows = 0 if self.node == self.missing else ROWS
        arrays = trained(parameters, self.node, rows=rows)
        self.updates.setdefault(self.node, np.concatenate([np.ravel(array) for array in arrays]))
        return arrays, 1, {}


class DroppingNodes(SecureNodes):
    """Nodes of secure sums whose clients train with dropout."""

    updates_made: Updates
    missing: int | None

    def app(self) -> ClientApp:
        """The app, as a node runs it."""
        return numpy_client_app(
            lambda context: Drops(
                list(self.contexts.values()).index(context), self.updates_made, missing=self.missing
            )
        )


def first_model() -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.ones((2, 2))), "bias": Array(np.zeros(2))})


def round_of(plan: Plan, folder: Path, *, missing: int | None) -> Updates:
    """What each client of a training's first round makes of the model."""
    updates: Updates = {}
    answer: Any
    folder.mkdir()
    rng: SecureRandom | None = SecureRandom(insecure_seed=3)
    if plan.masked:
        rng, answer = None, DroppingNodes(folder, [[]] * NODES)
        answer.updates_made, answer.missing = updates, missing
    else:
        app = numpy_client_app(
            lambda context: Drops(
                int(context.node_config["partition-id"]), updates, missing=missing
            )
        )
        answer = answer_with_app(app, NODES)
    strategy_class = DPFedBuff if isinstance(plan, BufferedPlan) else DPFedAvg
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with PrivacyLedger.open(folder / "ledger.db", plan, rng=rng) as ledger:
        strategy = strategy_class(plan=plan, ledger=ledger, rng=rng)
        strategy.start(
            LocalGrid(answer, NODES),
            first_model(),
            num_rounds=1,
            timeout=30.0,
            train_config=ConfigRecord({COINS_SEED_KEY: SEED}),
        )
    return updates


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_draws_nothing_moves_no_other_one(kind: str, tmp_path: Path) -> None:
    plan = PLANS[kind]().calibrated()
    everyone = round_of(plan, tmp_path / "all", missing=None)
    present = next(iter(everyone))  # the first to train: others come after it in the process
    without = round_of(plan, tmp_path / "neighbour", missing=present)
    others = everyone.keys() & without.keys() - {present}
    assert others
    for node in others:
        np.testing.assert_array_equal(everyone[node], without[node])
    assert not np.array_equal(everyone[present], without[present])
    again = round_of(plan, tmp_path / "again", missing=None)
    for node in everyone.keys() & again.keys():  # a seeded run repeats to the bit
        np.testing.assert_array_equal(everyone[node], again[node])


# Each door through which a message passes.

Played = Callable[[int | None, int | None, int], Updates]


def plain_app(updates: Updates, missing: int | None) -> ClientApp:
    """A Flower app without a line of fl-dp."""
    return with_training(ClientApp(), updates, missing)


def with_training(app: ClientApp, updates: Updates, missing: int | None) -> ClientApp:
    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        client = Drops(node, updates, missing=missing)
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        made, _, _ = client.fit(arrays, {})
        content = RecordDict(
            {"arrays": ArrayRecord(made), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    return app


def noised_app(updates: Updates, missing: int | None) -> ClientApp:
    return with_training(noised_client_app(), updates, missing)


def app_of_clients(updates: Updates, missing: int | None) -> ClientApp:
    return numpy_client_app(
        lambda context: Drops(int(context.node_config["partition-id"]), updates, missing=missing)
    )


def message_to(node: int, seed: int | None, server_round: int) -> Message:
    config: dict[str, Any] = {"server-round": server_round}
    if seed is not None:
        config[COINS_SEED_KEY] = seed
    content = RecordDict({"arrays": first_model(), "config": ConfigRecord(config)})
    return Message(content, message_type="train", dst_node_id=node)


def played_in_process(make: Any, missing: int | None, seed: int | None, turn: int) -> Updates:
    updates: Updates = {}
    grid = InProcessGrid(make(updates, missing), configs_of_nodes(3))
    torch.manual_seed(0)
    replies = grid.send_and_receive(message_to(node, seed, turn) for node in grid.get_node_ids())
    assert not [reply.error for reply in replies if reply.has_error()]
    return updates


def played_by_flower(make: Any, missing: int | None, seed: int | None, turn: int) -> Updates:
    """As Flower's own workers call an app, with no code of ours around it."""
    updates: Updates = {}
    answer = answer_with_app(make(updates, missing), 3)
    torch.manual_seed(0)
    for node in range(3):
        message = message_to(100 + node, seed, turn)
        message.metadata.__dict__["_message_id"] = str(node)
        reply = answer(message, node)
        assert reply is not None and not reply.has_error()
    return updates


def played_on_ray(make: Any, missing: int | None, seed: int | None, turn: int) -> Updates:
    """As a worker of fl-dp's own Ray grid calls an app; the worker is in this process."""
    updates: Updates = {}
    worker = Worker(Work(client="", run_id=1, settings="", code=""))
    worker._app = make(updates, missing)
    torch.manual_seed(0)
    for node in range(3):
        context = Context(1, node + 1, {"partition-id": node}, RecordDict(), {})
        message = message_to(node + 1, seed, turn)
        message.metadata.__dict__["_message_id"] = str(node)
        _, reply = worker.answer(message, context)
        assert not reply.has_error()
    return updates


DOORS = {
    "plain, on Ray": (played_on_ray, plain_app),
    "clients, on Ray": (played_on_ray, app_of_clients),
    "plain, in process": (played_in_process, plain_app),
    "noised, in process": (played_in_process, noised_app),
    "clients, in process": (played_in_process, app_of_clients),
    "noised, by Flower": (played_by_flower, noised_app),
    "clients, by Flower": (played_by_flower, app_of_clients),
}


@pytest.mark.parametrize("door", DOORS)
def test_coins_follow_from_seed_round_and_node_alone(door: str) -> None:
    play, make = DOORS[door]
    everyone = play(make, None, SEED, 1)
    without = play(make, 0, SEED, 1)
    for node in (1, 2):
        np.testing.assert_array_equal(everyone[node], without[node])
    assert not np.array_equal(everyone[1], play(make, None, SEED, 2)[1])
    assert not np.array_equal(everyone[1], play(make, None, SEED + 1, 1)[1])


@pytest.mark.parametrize("door", DOORS)
def test_without_a_seed_coins_are_fresh_whatever_the_process_has_seeded(door: str) -> None:
    play, make = DOORS[door]
    assert not np.array_equal(play(make, None, None, 1)[0], play(make, None, None, 1)[0])


@pytest.mark.parametrize("seed", ["5", -1, 5.0])
def test_a_seed_that_is_no_whole_number_seeds_nothing(seed: Any) -> None:
    first, again = (played_in_process(app_of_clients, None, seed, 1) for _ in range(2))
    assert not np.array_equal(first[0], again[0])


def test_the_process_goes_on_as_if_no_client_had_drawn() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    played_in_process(plain_app, None, None, 1)  # seeds 0 itself, before the clients
    torch.testing.assert_close(torch.rand(2), expected, rtol=0.0, atol=0.0)


def test_units_of_a_node_have_coins_of_their_own() -> None:
    """Under a plan with several units at a node, one by one."""

    def sums(missing: int | None) -> Updates:
        updates: Updates = {}
        units = NodeUnits(
            client_fn=lambda context, unit: Drops(unit, updates, missing=missing),
            count=lambda context, config: 3,
        )
        message = message_to(100, SEED, 1)
        bundle = PLANS["central"]().calibrated().bundle(1.0)
        instruction = RoundInstruction(server_round=1, units=(0, 1, 2), max_units=3, bundle=bundle)
        message.content.config_records["config"][INSTRUCTION_KEY] = encode_text(instruction)
        message.metadata.__dict__["_message_id"] = "1"
        reply = answer_with_app(numpy_client_app(units=units), 1)(message, 0)
        assert reply is not None and not reply.has_error()
        return updates

    everyone, without = sums(None), sums(0)
    for unit in (1, 2):
        np.testing.assert_array_equal(everyone[unit], without[unit])
    drawn = [everyone[unit] for unit in (1, 2)]
    assert not np.array_equal(drawn[0], drawn[1])


# `train_private`: the sum itself, in clipping norms.

CLIENTS, LEFT_OUT = 20, 0


@pytest.fixture
def fixed_coins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it before a training whose coins are those of the one before."""

    def start_again() -> None:
        numbers = count()
        monkeypatch.setattr(
            "fl_dp.user_code.SecureRandom", lambda: SecureRandom(insecure_seed=next(numbers))
        )

    yield start_again


def moved_by_leaving_out(dropout: float, fixed_coins: Callable[[], None]) -> float:
    """How far one client moves the sum of 20 clients' updates, in clipping norms."""
    draws = np.random.default_rng(0)
    records = draws.normal(size=(CLIENTS, ROWS, 8)).astype(np.float32)
    labels = draws.integers(0, 2, size=(CLIENTS, ROWS))
    updates: list[torch.Tensor] = []
    totals = []

    def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        update = nn.utils.parameters_to_vector(model.parameters()).detach() - before
        updates.append(update * min(1.0, 1.0 / float(update.norm())))

    for missing in (None, LEFT_OUT):
        updates.clear()
        rows = [0 if client == missing else ROWS for client in range(CLIENTS)]
        clients = [
            (records[client][: rows[client]], labels[client][: rows[client]])
            for client in range(CLIENTS)
        ]
        torch.manual_seed(0)
        module = nn.Sequential(nn.Dropout(dropout), nn.Linear(8, 2))
        fixed_coins()
        train_private(
            module,
            clients,
            epsilon=8.0,
            rounds=1,
            sampling_rate=1.0,
            clipping_norm=1.0,
            fit=fit,
            progress=False,
        )
        totals.append(torch.stack(updates).sum(dim=0))
    return float((totals[0] - totals[1]).norm())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_one_client_moves_the_sum_by_one_norm(
    dropout: float, fixed_coins: Callable[[], None]
) -> None:
    moved = moved_by_leaving_out(dropout, fixed_coins)
    assert moved <= 1.0 + 1e-5
    assert not math.isclose(moved, 0.0)


def test_a_process_of_one_message_shares_its_generators_with_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a SuperNode starts: there seeding would import torch for a client without it."""
    blocks = []

    @contextmanager
    def counted(source: object = None) -> Iterator[None]:
        blocks.append(source)
        yield

    monkeypatch.setattr("fl_dp.clients.coins.own_chance", counted)
    played_by_flower(app_of_clients, None, None, 1)
    assert len(blocks) == 3
    monkeypatch.setattr("sys.argv", ["/usr/bin/flwr-clientapp"])
    played_by_flower(app_of_clients, None, None, 1)
    assert len(blocks) == 3
    played_by_flower(app_of_clients, None, SEED, 1)
    assert len(blocks) == 6
