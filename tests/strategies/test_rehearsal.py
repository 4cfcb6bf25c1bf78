"""Before the first charge nodes say what they will answer with; what can't work ends there."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.contributions import ContributionCheck, NobodyContributes
from fl_dp.strategies.error_meanings import meaning_of
from fl_dp.strategies.node_answers import RehearsalFailed
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod as old_fixedclipping_mod
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from local_grid import (
    FIRST_NODE,
    LocalGrid,
    answer_with_app,
    answer_with_update,
    arrays_of,
    reply,
)
from owned_clock import OwnedClock
from scipy.stats import norm
from trainings import plan_of, record

from fl_dp import Plan, PrivacyLedger
from fl_dp.accounting import PoissonSampling, VisibleSampling
from fl_dp.clients import NodeUnits, noised_client_app, numpy_client_app
from fl_dp.mechanisms import GaussianBundle
from fl_dp.protocol.introduction import Ability, NodeIdentity
from fl_dp.protocol.message_keys import WIRE
from fl_dp.strategies import (
    DPFedAvg,
    ExponentialSelection,
    LawSelection,
    RosterIncomplete,
    UnprotectedFedAvg,
)

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

    def run(grid: LocalGrid, plan: Plan | None = None, **options: Any) -> DPFedAvg:
        plan = plan_of(N, noise_multiplier=0.1) if plan is None else plan
        ledger = options.pop("ledger", None) or open_ledger(plan)
        strategy = DPFedAvg(plan=plan, ledger=ledger, **{"roster_timeout": 20.0} | options)
        grid.ledger = ledger  # type: ignore[attr-defined]  # for the test to see
        strategy.start(grid, model(), num_rounds=plan.rounds)
        return strategy

    return run


def grid_of(app: ClientApp, kind: type[LocalGrid] = LocalGrid) -> LocalGrid:
    return kind(answer_with_app(app, N), N, introduces=True)


def assert_untouched(grid: LocalGrid) -> None:
    """Nothing was charged, and nobody was asked to train."""
    assert grid.ledger.rounds_spent == 0  # type: ignore[attr-defined]  # set by `start`
    assert not grid.sent


def capped(**changes: Any) -> Plan:
    return plan_of(N, sampling=VisibleSampling(cohort=N), participation_cap=2, **changes)


# --- Who is asked, and how often ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "plan", "asked"),
    [
        (LocalGrid, None, N),
        (LocalGrid, capped(), N),
        (Simulated, None, 3),
        (Simulated, capped(), N),  # where participations are counted
    ],
)
def test_real_nodes_are_all_asked_once_and_of_a_simulation_a_few_where_they_will_do(
    start: Any, kind: type[LocalGrid], plan: Plan | None, asked: int
) -> None:
    grid = grid_of(app_of(), kind)
    start(grid, plan)
    assert Counter(each.metadata.dst_node_id for each in grid.introductions) == dict.fromkeys(
        range(FIRST_NODE, FIRST_NODE + asked), 1
    )


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
            heard.append(NodeIdentity.from_config(config))
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
    assert_untouched(grid)


@pytest.mark.parametrize("kind", [dict, ArrayRecord])
def test_an_app_may_tell_its_arrays_by_name(start: Any, kind: Any) -> None:
    """As `get_arrays` and Flower's records hold them. Before, the names were read as arrays."""
    arrays = kind({"weight": Array(np.ones((2, 3))), "bias": Array(np.ones(3, np.float32))})
    if kind is dict:
        arrays = {name: array.numpy() for name, array in arrays.items()}
    grid = grid_of(app_of(arrays_fn=lambda context, config: arrays))
    start(grid)
    assert grid.sent


@pytest.mark.parametrize("dtype", ["float16", "longdouble", ">f4"])
def test_a_client_of_another_floating_point_dtype_takes_part(start: Any, dtype: str) -> None:
    arrays = [np.ones((2, 3), dtype), np.ones(3, dtype)]
    grid = grid_of(app_of(arrays_fn=lambda context, config: arrays))
    start(grid)
    assert grid.sent


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


def grid_with_last_told(told: ConfigRecord) -> LocalGrid:
    """Return nodes of which the last one answers the identity query with this."""

    def answer(message: Message, partition: int) -> Message | None:
        if not message.metadata.message_type.startswith("query"):
            return answer_with_update([{}] * N)(message, partition)
        usual = NodeIdentity(name=f"ward {partition}", versions={"fl-dp": "0.1.0"}).to_config()
        mine = told if partition == N - 1 else usual
        return Message(RecordDict({"identity": mine}), reply_to=message)

    return LocalGrid(answer, N, introduces=True)


def told_by(wire: int | None, version: str) -> ConfigRecord:
    """Return the answer of a node whose fl-dp speaks this version of the messages, or says none."""
    return NodeIdentity(name="ward", versions={"fl-dp": version}, wire=wire).to_config()


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (told_by(None, "0.0.9"), r"fl-dp 0\.0\.9 speaks version 0 .* fl-dp 0\.1\.0 at the node"),
        (
            told_by(WIRE - 1, "0.0.9"),
            rf"speaks version {WIRE - 1} .* Install fl-dp 0\.1\.0 at the node",
        ),
        (
            told_by(WIRE + 1, "0.9.0"),
            rf"0\.9\.0 speaks version {WIRE + 1} .* fl-dp 0\.9\.0 at the server",
        ),
        (
            ConfigRecord({"name": "ward", "fl-dp-wire": WIRE + 1, "fl-dp-about": "of tomorrow"}),
            rf"speaks version {WIRE + 1} .* Install fl-dp the node's version at the server",
        ),
    ],
    ids=["no version said", "older", "newer", "newer, and nothing else can be read"],
)
def test_a_node_with_other_messages_is_named_in_one_line_before_a_charge(
    start: Any, told: ConfigRecord, line: str
) -> None:
    grid = grid_with_last_told(told)
    with pytest.raises(RehearsalFailed, match=f"^node 'ward' can't take part: .*{line}") as said:
        start(grid)
    assert "\n" not in str(said.value)
    assert_untouched(grid)


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
    identity = NodeIdentity.from_config({"name": "ward 7", "fl-dp-about": about})
    assert identity.name == "ward 7"
    assert identity.arrays is None
    assert identity.app == ""
    assert "\n" not in "".join([*identity.versions.values(), *identity.mods])


# --- What a training needs of an app -------------------------------------------------------------

UTILITIES = ExponentialSelection(VisibleSampling(cohort=N // 2), epsilon=0.1)
NEEDS: dict[Ability, tuple[dict[str, Any], dict[str, Any]]] = {
    Ability.WEIGHTS: ({}, {"weight_cap": 10.0}),
    Ability.UNITS: ({"units_per_node": 2, "num_clients": 2 * N}, {}),
    Ability.SUMS: ({"coins_at_nodes": True}, {}),
    Ability.NOISE: ({"client_scheme": "gaussian"}, {}),
    Ability.UTILITY: (
        {"sampling": UTILITIES.sampling, "other_releases": UTILITIES.releases(1)},
        {"selection": UTILITIES},
    ),
}
CAN: dict[str, tuple[ClientApp, set[Ability]]] = {
    "plain": (ClientApp(), set()),
    "noised": (noised_client_app(), {Ability.NOISE}),
    "client": (app_of(), {Ability.NOISE, Ability.SUMS, Ability.UTILITY, Ability.WEIGHTS}),
    "units": (
        app_of(units=NodeUnits(client_fn=lambda *_: Client(), count=lambda *_: 2)),
        set(Ability) - {Ability.RECORDS},
    ),
}


@pytest.mark.parametrize("app", CAN)
@pytest.mark.parametrize("need", NEEDS)
def test_an_app_that_lacks_what_a_training_needs_is_refused_before_anything_is_spent(
    start: Any, need: Ability, app: str
) -> None:
    (of_plan, options), (made, abilities) = NEEDS[need], CAN[app]
    if app in ("plain", "noised"):  # with a training that works
        made = ClientApp() if app == "plain" else noised_client_app()
        made.train()(lambda message, context: reply(message, arrays_of(message)))
    grid, plan = grid_of(made), plan_of(**{"num_clients": N, "noise_multiplier": 0.1} | of_plan)
    if need in abilities:
        assert start(grid, plan, **options).rounds_completed == 1
        return
    with pytest.raises(RehearsalFailed, match=r"can't take part: .*(write|give) numpy_client_app"):
        start(grid, plan, **options)
    assert_untouched(grid)


@pytest.mark.parametrize("abilities", [None, 3, ["noise", "flight"], [["noise"]], "noise"])
def test_abilities_that_can_t_be_read_are_none(abilities: Any) -> None:
    about = json.loads(str(NodeIdentity(name="ward 7").to_config()["fl-dp-about"]))
    told = NodeIdentity.from_config(
        {"name": "ward 7", "fl-dp-about": json.dumps(about | {"abilities": abilities})}
    )
    assert (told.name, told.abilities) == ("ward 7", frozenset())


def test_without_a_plan_weights_need_an_app_that_applies_them() -> None:
    grid = LocalGrid(answer_with_update([{}] * N), N)
    strategy = UnprotectedFedAvg(
        selection=LawSelection(PoissonSampling(sampling_rate=1.0)), weight_cap=10.0
    )
    with pytest.raises(RehearsalFailed, match="its app applies none"):
        strategy.start(grid, model(), num_rounds=1)
    assert not grid.sent


# --- What strangers bring -------------------------------------------------------------------------


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
    assert_untouched(grid)


@pytest.mark.parametrize(
    "mod", [secaggplus_mod, fixedclipping_mod, adaptiveclipping_mod, old_fixedclipping_mod]
)
def test_a_leftover_mod_is_named_before_anything_is_spent(start: Any, mod: Any) -> None:
    grid = grid_of(app_of(mods=[mod]))
    with pytest.raises(RehearsalFailed, match=f"it has {mod.__name__}; leave it out"):
        start(grid)
    assert_untouched(grid)


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


# --- A client that never works --------------------------------------------------------------------

EIGHT = plan_of(10, noise_multiplier=0.83, rounds=3, contribution_check=True)  # epsilon 8


def dividing(message: Message, context: Context) -> Message:
    return reply(message, {"w": [1 / 0]})


def plain(train: Any) -> ClientApp:
    app = ClientApp()
    app.train()(train)
    return app


def test_an_untried_app_that_fails_everywhere_costs_one_round_and_is_named(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(answer_with_app(plain(dividing), 10), 10, introduces=True)
    with pytest.raises(NobodyContributes):
        start(grid, EIGHT)
    assert grid.ledger.rounds_spent == 1  # type: ignore[attr-defined]  # set by `start`
    assert re.search(r"at node 10\d \(its client app raised ZeroDivisionError\)", caplog.text)
    assert "every client that replied in a round failed" in caplog.text
    assert "division by zero" not in caplog.text


def test_how_often_an_untried_app_s_first_round_is_judged_wrongly() -> None:
    """Exact for ten clients: the count is Gaussian. Without the close count it would miss most."""
    bundle = EIGHT.bundle(EIGHT.noise_multipliers[0])
    stops = {}
    for std in (bundle.count_noise_std, bundle.counting_closely().count_noise_std):
        assert std is not None
        counts = np.linspace(-12.0, 20.0, 3201)
        ended = [count for count in counts if ends(float(count), std)]
        for contributing in (0, 9, 10):  # the test stops at and below one count
            stops[std, contributing] = norm.cdf(max(ended), loc=contributing, scale=std)
    close = math.sqrt(2.0) * 0.83
    assert stops[close, 0] > 0.98
    assert stops[close, 9] < 1e-6
    assert stops[close, 10] < 1e-8
    assert min(each for (std, n), each in stops.items() if std != close and n == 0) < 0.5


def ends(count: float, noise_std: float) -> bool:
    check = ContributionCheck(EIGHT)
    try:
        check.observe(count, noise_std=noise_std, asked=10, untried=True)
    except NobodyContributes:
        return True
    return False


@pytest.mark.parametrize("std", [0.42, 0.5, 0.6, 4.0])
def test_the_close_count_takes_half_of_what_the_scalars_leave(std: float) -> None:
    """Half of the bits' deviation costs as much as the round at 0.415; at 0.587, half of it."""
    usual = GaussianBundle(
        noise_multiplier=0.83,
        clipping_norms=(1.0,),
        unclipped_bit=True,
        scalar_noise_std=std,
        count_noise_std=100.0,
    )
    close = usual.counting_closely()
    assert close.count_noise_std is not None
    left = 0.83**-2 - (2.0 * std) ** -2
    assert close.count_noise_std**-2 == pytest.approx(left / 2.0)
    assert close.updates.noise_multiplier**-2 == pytest.approx(left / 2.0)
    assert close.updates.noise_multiplier < 1.42 * usual.updates.noise_multiplier


def test_only_the_first_round_of_an_untried_app_counts_closely(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stds: list[float] = []
    observe = ContributionCheck.observe

    def seen(check: ContributionCheck, count: float, **told: Any) -> None:
        stds.append(told["noise_std"])
        observe(check, count, **told)

    monkeypatch.setattr(ContributionCheck, "observe", seen)
    works = answer_with_update([{"weight": np.ones((2, 3))}] * 10)
    start(LocalGrid(works, 10), EIGHT)
    usual = EIGHT.bundle(0.83).count_noise_std
    assert stds == pytest.approx([math.sqrt(2.0) * 0.83, usual, usual])
    stds.clear()
    start(LocalGrid(answer_with_app(app_of(), 10), 10, introduces=True), EIGHT)
    assert stds == pytest.approx([usual] * 3)


RAY = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run()\n"
    '  File "/app.py", line 161, in __call__\n    return secret\n{raised}\n\n'
    "The above exception was the direct cause of the following exception:\n\nsecret\n'>"
)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (RAY.format(raised="ZeroDivisionError: secret"), "raised ZeroDivisionError"),
        (RAY.format(raised="Patient4711: secret"), "it failed, see its log"),
        (
            "<class 'ray.exceptions.RayTaskError(ModuleNotFoundError)'>:<'secret'>",
            "raised ModuleNotFoundError",
        ),
        ("secret", "it failed, see its log"),
        ("PolicyRefusal", "its owner does not allow"),
    ],
)
@pytest.mark.parametrize("kind", [LocalGrid, Simulated])
def test_a_rehearsal_that_fails_everywhere_ends_before_anything_is_spent(
    start: Any, kind: type[LocalGrid], reason: str, told: str
) -> None:
    def failing(message: Message, partition: int) -> Message:
        return Message(Error(code=2, reason=reason), reply_to=message)

    grid = kind(failing, N, introduces=True)
    with pytest.raises(RehearsalFailed, match=told) as refused:
        start(grid)
    assert f"node {FIRST_NODE} " in str(refused.value)
    # Nobody is protected from the one who simulates: there the traceback is told, whole.
    whole = kind is Simulated and "\n" in reason
    assert ("secret" in str(refused.value)) is whole
    assert ("The above exception was" in str(refused.value)) is whole
    assert_untouched(grid)


def test_one_node_that_answers_is_enough_to_begin(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answered = answer_with_app(app_of(), N)

    def answer(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type.startswith("query") and partition:
            return Message(Error(code=2, reason="KeyError"), reply_to=message)
        return answered(message, partition)

    assert start(LocalGrid(answer, N, introduces=True)).rounds_completed == 1
    assert caplog.text.count("can't say what it will answer with") == N - 1


def test_where_no_node_answers_at_all_nothing_is_spent(start: Any) -> None:
    grid = LocalGrid(lambda message, partition: None, N, introduces=True)
    with pytest.raises(RehearsalFailed, match="none of the 6 nodes that were asked answered"):
        start(grid, **IMPATIENT)
    assert_untouched(grid)


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
    assert_untouched(grid)


@pytest.mark.parametrize("kind", [LocalGrid, Simulated])
def test_simulated_nodes_that_answer_slowly_are_waited_for(
    start: Any, clock: OwnedClock, kind: type[LocalGrid]
) -> None:
    """A second for all of them, on a machine that needs a third for each."""

    class Slow(kind):  # type: ignore[misc,valid-type]  # of the parameter
        def replies_to(self, message_ids: Any) -> Any:
            if self.sent:
                return super().replies_to(message_ids)
            clock.sleep(0.3)
            return super().replies_to(list(message_ids)[:1])

    Slow.__name__ = kind.__name__
    grid = Slow(answer_with_app(app_of(), N), N, introduces=True)
    if kind is LocalGrid:
        with pytest.raises(RosterIncomplete, match="did not tell their names"):
            start(grid, capped(), roster_timeout=1.0)
    else:
        assert start(grid, capped(), roster_timeout=1.0).rounds_completed == 1


# --- A node whose own budget is exhausted ---------------------------------------------------------


@pytest.mark.parametrize("limit", ["cap", "run"])
@pytest.mark.parametrize(("told", "spent"), [(True, True), (True, False), (False, True)])
def test_an_exhausted_node_is_named_only_if_its_owner_allows_it(
    start: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    told: bool,
    spent: bool,
    limit: str,
) -> None:
    from fl_dp.ledger import NodeLedger
    from fl_dp.ledger.node import Account, RunLimit
    from fl_dp.plan import RecordPlan

    records = replace(
        RecordPlan.from_noise_multiplier(
            1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=1, clipping_norm=1.0
        ),
        training="wards",
    )
    earlier = "training wards" if limit == "run" else "training of others"
    with NodeLedger.open(tmp_path / "node.db") as ledger:
        if spent:
            ledger.charge(
                Account(unit="record", source="ward 1", fingerprint="anything"),
                records.event,
                count=records.steps,
                budget=records.budget if limit == "cap" else None,
                limit=RunLimit(run=earlier, budget=records.budget),
                what="an earlier run",
                neighboring_relation=records.neighboring_relation,
            )
    config: dict[str, Any] = {"dp-ledger-path": str(tmp_path / "node.db"), "dp-unit-name": "ward 1"}
    if told:
        config["dp-tell-exhausted"] = True
    if limit == "cap":
        config["dp-max-epsilon"] = records.budget.epsilon
        config["dp-require-privacy"] = "none"
    context = Context(1, FIRST_NODE, config, RecordDict(), {})
    app, others = app_of(), answer_with_app(app_of(), N)

    def answer(message: Message, partition: int) -> Message | None:
        return app(message, context) if partition == 1 else others(message, partition)

    caplog.set_level(logging.INFO)
    start(LocalGrid(answer, N, introduces=True), record_plan=records)
    node = "Node 'ward 1' (numpy_client_app of fl-dp): "
    words = {
        "cap": "the node's own budget is exhausted: its owner's cap over all runs (dp-max-epsilon)",
        "run": "the node's ledger has no room for a round within this training's own budget",
    }
    for name, said in words.items():
        assert (node + said in caplog.text) == (told and spent and name == limit)


# --- What a node can say of its owner and its budget, without data --------------------------------

REFUSING = {
    "dp-require-privacy": "record",
    "dp-allow-unverified-apps": True,
    "dp-ledger-path": "/not/read/node.db",
    "dp-max-epsilon": 4.0,
    "dp-max-delta": 1e-5,
}


def owned(refusing: int, config: dict[str, Any], kind: type[LocalGrid] = LocalGrid) -> LocalGrid:
    """Return nodes of which the last so many have owners who wrote this configuration."""
    app = app_of()

    def answer(message: Message, partition: int) -> Message | None:
        said = config if partition >= N - refusing else {}
        named = {"dp-unit-name": f"ward {partition}", **said}
        return app(message, Context(1, FIRST_NODE + partition, named, RecordDict(), {}))

    return kind(answer, N, introduces=True)


def test_a_run_whose_policy_most_owners_refuse_ends_before_a_charge_in_one_line(start: Any) -> None:
    grid = owned(N - 1, REFUSING)
    with pytest.raises(RehearsalFailed, match=rf"^{N - 1} of the {N} nodes .* take no part") as few:
        start(grid)
    assert_untouched(grid)
    said = str(few.value)
    assert "Node 'ward 1' (numpy_client_app of fl-dp)" in said
    assert "'ward 0'" not in said
    assert "nothing was charged" in said
    assert "\n" not in said


@pytest.mark.parametrize("kind", [LocalGrid, Simulated])
def test_owners_who_refuse_are_named_where_enough_take_part(
    start: Any, kind: type[LocalGrid], caplog: pytest.LogCaptureFixture
) -> None:
    assert start(owned(N // 2, REFUSING, kind)).rounds_completed == 1
    named = "its owner does not allow this training" in caplog.text
    assert named is (kind is LocalGrid)  # of a simulation the first few are asked


KINDS_OF_PRIVACY: dict[str, dict[str, Any]] = {
    "local": {"client_scheme": "gaussian", "noise_multiplier": 5.0},
    "none": {},
}


@pytest.mark.parametrize("kind", KINDS_OF_PRIVACY)
def test_a_policy_is_held_against_the_training_that_is_rehearsed(
    start: Any, tmp_path: Path, kind: str
) -> None:
    config = {
        "dp-require-privacy": "local",
        "dp-allow-unverified-apps": True,
        "dp-ledger-path": str(tmp_path / "node.db"),
        "dp-max-epsilon": 1e6,
        "dp-max-delta": 0.1,
    }
    grid, plan = owned(N, config), plan_of(N, **KINDS_OF_PRIVACY[kind])
    if kind == "local":
        assert start(grid, plan).rounds_completed == 1
        return
    with pytest.raises(RehearsalFailed, match="does not allow this training"):
        start(grid, plan)
    assert_untouched(grid)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_budget_that_pays_for_a_part_of_the_rounds_is_said_before_the_first(
    start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, told: bool, rounds: int
) -> None:
    from fl_dp.plan import RecordPlan

    records = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=rounds, clipping_norm=1.0
    )
    cap = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=1, clipping_norm=1.0
    ).budget.epsilon
    config = {
        "dp-ledger-path": str(tmp_path / "node.db"),
        "dp-max-epsilon": 1.05 * cap,
        "dp-max-delta": 1.2e-5,
        "dp-require-privacy": "none",
        "dp-tell-exhausted": told,
    }
    start(owned(1, config), record_plan=records)
    said = "the node's own budget pays for a part of this training's rounds"
    assert (said in caplog.text) is (told and rounds == 4)
