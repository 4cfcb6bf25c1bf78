"""Before the first charge nodes say what they will answer with; what can't work ends there."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.rehearsal import RehearsalFailed, meaning_of
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod as old_fixedclipping_mod
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from local_grid import FIRST_NODE, LocalGrid, answer_with_app, answer_with_update, reply
from trainings import plan_of, record

from fl_dp import PrivacyLedger, PrivacyPlan
from fl_dp.accounting import VisibleSampling
from fl_dp.clients import numpy_client_app
from fl_dp.protocol.identity import NodeIdentity
from fl_dp.strategies import DPFedAvg, RosterIncomplete

N = 6


class Client(NumPyClient):
    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype = dtype

    def fit(self, parameters: Any, config: Any) -> Any:
        return [(each + 1).astype(self.dtype) for each in parameters], 1, {}


def model() -> Any:
    return record(weight=np.zeros((2, 3), np.float32), bias=np.zeros(3, np.float32))


def app_of(**options: Any) -> ClientApp:
    return numpy_client_app(lambda context: Client(), **options)


class Simulated(LocalGrid):
    """Nodes of Flower's simulation engine, which is known by the name of its grid."""


Simulated.__name__ = "InMemoryGrid"


@pytest.fixture
def start(open_ledger: Any) -> Callable[..., DPFedAvg]:
    """Train on a grid and return the strategy; its ledger stays open."""

    def run(grid: LocalGrid, plan: PrivacyPlan | None = None, **options: Any) -> DPFedAvg:
        plan = plan_of(N, noise_multiplier=0.1) if plan is None else plan
        ledger = options.pop("ledger", None) or open_ledger(plan)
        strategy = DPFedAvg(plan=plan, ledger=ledger, **{"roster_timeout": 20.0} | options)
        grid.ledger = ledger  # type: ignore[attr-defined]  # for the test to see
        strategy.start(grid, model(), num_rounds=plan.rounds)
        return strategy

    return run


def grid_of(app: ClientApp, kind: type[LocalGrid] = LocalGrid) -> LocalGrid:
    return kind(answer_with_app(app, N), N, introduces=True)


def capped(**changes: Any) -> PrivacyPlan:
    return plan_of(N, sampling=VisibleSampling(cohort=N), participation_cap=2, **changes)


# --- Who is asked, and how often ------------------------------------------------------------------


@pytest.mark.parametrize("plan", [None, capped()])
def test_real_nodes_are_asked_once_each(start: Any, plan: PrivacyPlan | None) -> None:
    grid = grid_of(app_of())
    start(grid, plan)
    assert Counter(each.metadata.dst_node_id for each in grid.introductions) == dict.fromkeys(
        range(FIRST_NODE, FIRST_NODE + N), 1
    )


@pytest.mark.parametrize(("plan", "asked"), [(None, 3), (capped(), N)])
def test_a_simulation_asks_a_few_and_everybody_once_where_participations_are_counted(
    start: Any, plan: PrivacyPlan | None, asked: int
) -> None:
    grid = grid_of(app_of(), Simulated)
    start(grid, plan)
    assert len({each.metadata.dst_node_id for each in grid.introductions}) == asked
    assert len(grid.introductions) == asked


def test_a_simulation_of_plain_clients_asks_a_few(start: Any) -> None:
    grid = Simulated(answer_with_update([{}] * N), N)
    start(grid, capped())
    assert len(grid.introductions) == 3


def test_the_query_touches_no_client(start: Any) -> None:
    made: list[str] = []

    def client_fn(context: Context) -> NumPyClient:
        made.append("client")
        return Client()

    grid = grid_of(numpy_client_app(client_fn))
    start(grid)
    assert len(made) == N  # one for each train message, none for a query


# --- What nodes say, against the model ------------------------------------------------------------


def test_a_node_says_who_it_is_and_what_it_will_answer_with(start: Any) -> None:
    heard: list[NodeIdentity] = []
    app = app_of(arrays_fn=lambda context, config: [np.ones((2, 3)), np.ones(3, np.float32)])
    answered = answer_with_app(app, N)

    def listening(message: Message, partition: int) -> Message | None:
        answer = answered(message, partition)
        if message.metadata.message_type.startswith("query"):
            assert answer is not None
            [config] = answer.content.config_records.values()
            heard.append(NodeIdentity.of(config))
        return answer

    start(LocalGrid(listening, N, introduces=True))
    assert [each.name for each in heard] == [f"partition-{i}" for i in range(N)]
    first = heard[0]
    assert first.app == "numpy_client_app of fl-dp"
    assert {"fl-dp", "flwr"} <= first.versions.keys()
    assert first.arrays == {"weight": ((2, 3), "float64"), "bias": ((3,), "float32")}
    assert not first.exhausted


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            [np.ones((2, 4), np.float32), np.ones(3, np.float32)],
            r"'weight' as float32 of shape \(2, 4\)",
        ),
        ([np.ones((2, 3), np.float32)], "without the model's array 'bias'"),
        ([np.ones((2, 3), np.float32), np.ones(3, np.int64)], "'bias' as int64"),
        ([np.ones((2, 3), np.float32)] + [np.ones(3, np.float32)] * 2, "1 arrays that the model"),
    ],
)
def test_a_client_of_another_model_is_refused_before_anything_is_spent(
    start: Any, arrays: Any, said: str
) -> None:
    grid = grid_of(app_of(arrays_fn=lambda context, config: arrays))
    with pytest.raises(RehearsalFailed, match=said) as refused:
        start(grid)
    assert "node 'partition-0' (numpy_client_app of fl-dp)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert grid.ledger.rounds_spent == 0  # type: ignore[attr-defined]  # set by `start`
    assert not grid.sent


def test_an_arrays_fn_that_fails_is_told_by_its_kind_alone(start: Any) -> None:
    def broken(context: Context, config: Any) -> Any:
        raise ModuleNotFoundError("patient 4711")

    with pytest.raises(RehearsalFailed, match=r"arrays_fn failed \(ModuleNotFoundError\)") as said:
        start(grid_of(app_of(arrays_fn=broken)))
    assert "4711" not in str(said.value)


def test_another_version_is_a_warning(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    def answer(message: Message, partition: int) -> Message | None:
        if not message.metadata.message_type.startswith("query"):
            return answer_with_update([{}] * N)(message, partition)
        version = "0.0.9" if partition == 4 else "0.1.0"
        told = NodeIdentity(name=f"ward {partition}", versions={"fl-dp": version}).to_config()
        return Message(RecordDict({"identity": told}), reply_to=message)

    start(LocalGrid(answer, N, introduces=True))
    assert "'ward 4': another version of fl-dp (0.0.9) than the others (0.1.0)" in caplog.text


@pytest.mark.parametrize(
    "about",
    [
        "no json",
        "[]",
        "[" * 100_000,
        json.dumps({"versions": 3, "mods": None}),
        json.dumps({"versions": {}, "mods": [], "arrays": {"weight": 5}}),
        json.dumps({"versions": {}, "mods": [], "arrays": {"weight": [[1e400], "x"]}}),
        json.dumps({"versions": {"fl-dp": "\n\x1b[31m" * 9}, "mods": ["\n"], "app": "\n" * 9}),
    ],
)
def test_a_hostile_answer_is_no_more_than_a_name(about: str) -> None:
    identity = NodeIdentity.of({"name": "ward 7", "fl-dp-about": about})
    assert identity.name == "ward 7"
    assert identity.arrays is None
    assert identity.app == ""
    assert "\n" not in "".join([*identity.versions.values(), *identity.mods])


# --- What strangers bring -------------------------------------------------------------------------


def test_a_client_fn_may_return_to_client(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = numpy_client_app(lambda context: Client().to_client())
    grid = grid_of(app)
    strategy = start(grid, plan_of(N, noise_multiplier=0.01, contribution_check=True, rounds=3))
    assert strategy.rounds_completed == 3
    assert "contributes zero" not in caplog.text


def test_float64_replies_for_a_float32_model_count_and_are_noted_once(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = numpy_client_app(lambda context: Client(np.float64))
    strategy = start(grid_of(app), plan_of(N, noise_multiplier=0.01, rounds=2))
    assert "contributes zero" not in caplog.text
    assert [r.getMessage() for r in caplog.records].count(
        "an update has another floating-point dtype than the model; it is converted (said once)"
    ) == 1
    arrays = strategy.checkpoint().model
    assert {array.dtype for array in arrays.values()} == {"float32"}
    moved = np.concatenate([array.numpy().ravel() for array in arrays.values()])
    np.testing.assert_allclose(moved, 2 / 3, atol=0.1)  # two rounds of 1 / sqrt(9), clipped to 1


def test_a_client_app_of_the_older_api_is_named_with_the_lines_to_write(start: Any) -> None:
    grid = grid_of(ClientApp(client_fn=lambda context: Client().to_client()))
    with pytest.raises(RehearsalFailed, match=r"app = numpy_client_app\(client_fn\)"):
        start(grid)
    assert grid.ledger.rounds_spent == 0  # type: ignore[attr-defined]  # set by `start`


@pytest.mark.parametrize(
    "mod", [secaggplus_mod, fixedclipping_mod, adaptiveclipping_mod, old_fixedclipping_mod]
)
def test_a_leftover_mod_is_named_before_anything_is_spent(start: Any, mod: Any) -> None:
    grid = grid_of(app_of(mods=[mod]))
    with pytest.raises(RehearsalFailed, match=f"it has {mod.__name__}; leave it out"):
        start(grid)
    assert grid.ledger.rounds_spent == 0  # type: ignore[attr-defined]  # set by `start`


@pytest.mark.parametrize(
    ("mod", "named"),
    [
        (secaggplus_mod, "it has secaggplus_mod"),
        (fixedclipping_mod, "it has fixedclipping_mod"),
        (adaptiveclipping_mod, "it has adaptiveclipping_mod"),
        (old_fixedclipping_mod, "fixedclipping_mod or adaptiveclipping_mod from flwr.client.mod"),
    ],
)
def test_a_plain_app_s_leftover_mod_is_named_in_the_first_round(
    start: Any, caplog: pytest.LogCaptureFixture, mod: Any, named: str
) -> None:
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        return reply(message, {})

    start(grid_of(app))
    [said] = [r.getMessage() for r in caplog.records if "a client failed" in r.getMessage()]
    assert named in said


def test_a_plain_flower_client_is_warned_about_once_and_trains(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(answer_with_update([{"weight": np.ones((2, 3))}] * N), N)
    assert start(grid).rounds_completed == 1
    assert caplog.text.count("plain Flower ClientApp") == 1


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (Error(2, "ZeroDivisionError"), "its client app raised ZeroDivisionError"),
        (Error(2, "<class 'ImportError'>:<'secret'>"), "its client app raised ImportError"),
        (Error(2, "ValueError('secret')"), "its client app raised ValueError"),
        (Error(2, "secret"), None),
        (Error(2, "Patient4711"), None),
        (Error(2, "<class 'app.Patient4711'>:<'x'>"), None),
        (Error(0, None), None),
        (
            Error(1, "An exception was raised when attempting to load `ClientApp`"),
            "can't be loaded",
        ),
        (Error(2, "<class 'KeyError'>:<''secaggplus_configs''>"), "secaggplus_mod"),
    ],
)
def test_what_a_node_says_of_its_error_is_never_passed_on(
    error: Error, meaning: str | None
) -> None:
    found = meaning_of(error)
    if meaning is None:
        assert found is None
    else:
        assert found is not None
        assert meaning in found.text
        assert "secret" not in found.text


# --- Silence --------------------------------------------------------------------------------------


def silent_at_first(times: int, node: int = 2) -> LocalGrid:
    """A node that leaves so many queries unanswered."""
    answered, left = answer_with_app(app_of(), N), [times]

    def answer(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type.startswith("query") and partition == node and left[0]:
            left[0] -= 1
            return None
        return answered(message, partition)

    return LocalGrid(answer, N, introduces=True)


IMPATIENT = {"roster_timeout": 3.0}  # somebody is silent: all of it is waited for


def test_a_silent_node_is_asked_again_and_the_run_can_be_resumed(
    start: Any, tmp_path: Path
) -> None:
    grid, plan = silent_at_first(2), capped()
    ledger = PrivacyLedger.open(tmp_path / "l.db", plan)
    start(grid, plan, ledger=ledger, **IMPATIENT)
    assert len(grid.introductions) == N + 2
    assert ledger.participations == {f"partition-{node}": 1 for node in range(N)}
    ledger.close()


def test_a_node_that_stays_silent_ends_a_capped_run_before_anything_is_spent(start: Any) -> None:
    grid = silent_at_first(99)
    with pytest.raises(RosterIncomplete, match="1 of 6 nodes did not tell their names") as refused:
        start(grid, capped(), **IMPATIENT)
    assert f"({FIRST_NODE + 2})" in str(refused.value)
    assert "roster_timeout" in str(refused.value)
    assert grid.ledger.rounds_spent == 0  # type: ignore[attr-defined]  # set by `start`
    assert not grid.sent


def test_without_a_cap_a_silent_node_is_a_warning(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert start(silent_at_first(99), **IMPATIENT).rounds_completed == 1
    assert f"Node {FIRST_NODE + 2} did not answer within" in caplog.text


# --- A node whose own budget is exhausted ---------------------------------------------------------


@pytest.mark.parametrize(("told", "spent"), [(True, True), (True, False), (False, True)])
def test_an_exhausted_node_is_named_only_if_its_owner_allows_it(
    start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, told: bool, spent: bool
) -> None:
    from fl_dp.ledger import Account, NodeLedger
    from fl_dp.plan import RecordPlan

    records = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=1, clipping_norm=1.0
    )
    with NodeLedger.open(tmp_path / "node.db") as ledger:
        if spent:
            ledger.charge(
                Account(unit="record", source="ward 1", fingerprint="anything"),
                records.event,
                count=records.steps,
                budget=records.budget,
                what="an earlier run",
                neighboring_relation=records.neighboring_relation,
            )
    config: dict[str, Any] = {"ledger-path": str(tmp_path / "node.db"), "unit-name": "ward 1"}
    if told:
        config["tell-exhausted"] = True
    context = Context(1, FIRST_NODE, config, RecordDict(), {})
    app, others = app_of(), answer_with_app(app_of(), N)

    def answer(message: Message, partition: int) -> Message | None:
        return app(message, context) if partition == 1 else others(message, partition)

    caplog.set_level(logging.INFO)
    start(LocalGrid(answer, N, introduces=True), record_plan=records)
    named = "Node 'ward 1' (numpy_client_app of fl-dp): the node's own budget is exhausted"
    assert (named in caplog.text) == (told and spent)
