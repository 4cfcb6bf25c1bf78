"""Secure sums over gates: the opened sum is right and noised, and no app can see or break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.modes.base import RoundFailed
from fl_dp.strategies.node_answers import RehearsalFailed
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from gated_site import PROJECT, RUN, App, Gates, adding, bundle, replying
from local_grid import LocalGrid
from numpy.typing import NDArray
from opposite_apps import WRONGS, misbehaving
from owned_clock import OwnedClock
from secure_nodes import SecureNodes
from secure_trainings import plan_of

from fl_dp import PrivacyLedger
from fl_dp.clients.owner.node_policy import PolicyRefusal
from fl_dp.clients.owner.running_app import RunningApp
from fl_dp.clients.secure_node import IDENTITY_FILE, STORE_FILE
from fl_dp.codec import encode_text
from fl_dp.gate.judged_run import JudgedRun
from fl_dp.gate.policy import GatePolicy
from fl_dp.gate.ways import DistributedWay
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.plan import DistributedPlan, SecureSum
from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, SumInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY
from fl_dp.protocol.secure_sum_messages import SECURE_SUM_KEY
from fl_dp.secagg import SQLiteStore
from fl_dp.strategies import DPFedAvg

NODES, SIZE, NORM = 3, 4, 1.0
SUMS = {
    "dp-gate-promise": "distributed",
    "dp-gate-noise-multiplier": None,
    "dp-gate-clipping-norm": NORM,
    "dp-max-epsilon": 1e9,
}


def gates_of(folder: Path, *apps: App, **policy: Any) -> Gates:
    gates = Gates(folder, NODES, **SUMS | policy)
    for here, app in zip(gates.sites, apps, strict=False):
        here.app = app
    return gates


def trained(
    folder: Path, gates: Gates, plan: DistributedPlan, *, size: int = SIZE, rounds: int = 1
) -> NDArray[Any]:
    initial = ArrayRecord({"w": Array(np.zeros(size))})
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        grid = LocalGrid(gates, NODES)
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        result = strategy.start(grid, initial, num_rounds=rounds)
    values: NDArray[Any] = result.arrays["w"].numpy()
    return values


def tolerance(plan: DistributedPlan) -> float:
    """Six standard deviations of the noise on a coordinate of the mean, over all shares."""
    return 6.0 * 2.0 * plan.noise_multiplier * plan.clipping_norm / NODES


def test_the_opened_sum_is_that_of_apps_that_know_nothing_of_it(tmp_path: Path) -> None:
    updates = [np.array([0.5, 0.0, 0.0, 0.1]), np.array([0.0, -0.4, 0.0, 0.1]), 0.0]
    gates = gates_of(tmp_path, *map(adding, updates))
    plan = plan_of(NODES)
    mean = trained(tmp_path, gates, plan)
    expected = np.array([0.5, -0.4, 0.0, 0.2]) / NODES
    assert mean == pytest.approx(expected, abs=tolerance(plan))
    for here in gates.sites:
        assert here.charges() == 1
        [seen] = here.seen
        assert seen.metadata.message_type == "train"
        assert set(seen.content) == {"arrays", "config"}
        assert INSTRUCTION_KEY not in seen.content["config"]


def test_what_one_site_sends_tells_nothing_and_the_sum_has_the_noise_that_is_charged(
    tmp_path: Path,
) -> None:
    size = 20_000
    gates = gates_of(tmp_path, *[adding(0.0)] * NODES)
    plan = plan_of(NODES, noise_multiplier=2.0)
    mean = trained(tmp_path, gates, plan, size=size)
    # All three shares are in it, of which `honest_shares` are charged for.
    deviation = plan.noise_of_mean(plan.noise_multiplier)
    # Six standard deviations of the estimate; half of the noise would be 84 off.
    assert mean.std() == pytest.approx(deviation, rel=6 / np.sqrt(2 * size))
    for here in gates.sites:
        masked = next(
            arrived.arrays["masked"]
            for arrived in here.server.arrived
            if arrived.message.has_content() and arrived.message.content.array_records
        )
        counts = np.bincount(masked, minlength=256)
        # Uniform bytes: one of 256 counts is 8 deviations off once in 1e12 runs.
        assert np.abs(counts - masked.size / 256).max() < 8 * np.sqrt(masked.size / 256)
        with NodeLedger.read(here.ledger) as ledger:
            [spending] = ledger.spendings
        [event] = spending.releases
        assert isinstance(event, GaussianEvent)
        assert event.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-3)


def test_keys_and_shares_are_the_gate_s_own_and_lie_beside_its_ledger(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, *[adding(0.0)] * NODES)
    trained(tmp_path, gates, plan_of(NODES))
    for here in gates.sites:
        assert (here.ledger.parent / IDENTITY_FILE).is_file()
        assert (here.ledger.parent / STORE_FILE).is_file()
        kinds = {message.metadata.message_type for message in here.seen}
        assert kinds == {"train"}
        asked = {arrived.message.metadata.message_type for arrived in here.server.arrived}
        assert len(asked) > 3  # of which the app saw none


def test_the_server_sees_no_more_of_an_app_that_misbehaves_than_of_one_that_does_not(
    tmp_path: Path, owned: OwnedClock
) -> None:
    """Sizes, order and instants since a pull, of all calls but pieces of one message."""
    gates = gates_of(tmp_path, *[adding(0.1)] * NODES)
    behaves, misbehaves, _ = gates.sites
    misbehaves.app = misbehaving(misbehaves, owned)
    rounds = len(WRONGS)
    trained(tmp_path, gates, plan_of(NODES, rounds=rounds), rounds=rounds)
    told = []
    for here in (behaves, misbehaves):
        pulled, calls = 0.0, list[tuple[str, float, int]]()
        for call, time, size in here.server.calls:
            if call == "pull-messages":
                pulled = time
            if call not in ("push-object", "pull-object"):
                calls.append((call, round(time - pulled, 6), size))
        told.append(calls)
        assert here.charges() == rounds
    assert told[0] == told[1]


def test_the_mark_of_work_goes_only_after_its_answer_has_left(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, *[adding(0.0)] * NODES)
    here, marks = gates.sites[0], list[bytes | None]()

    def mark_of(run: int) -> bytes | None:
        store = SQLiteStore(here.ledger.parent / STORE_FILE)
        try:
            return store.get(None, f"late {run}")
        finally:
            store.close()

    def look(shell: Message) -> None:
        if shell.metadata.message_type == "train":
            marks.append(mark_of(shell.metadata.run_id))

    here.server.before_taking = look
    trained(tmp_path, gates, plan_of(NODES, rounds=2), rounds=2)
    assert marks == [b"begun", b"begun"]
    assert mark_of(here.seen[-1].metadata.run_id) == b""


def in_arrays(change: Callable[[Any], Any]) -> App:
    def content(message: Message) -> dict[str, Any]:
        changed = change(message.content.array_records["arrays"]["w"].numpy())
        return {"arrays": ArrayRecord({"w": Array(np.asarray(changed))})}

    return replying(content)


def with_another_sum(message: Message) -> list[Message]:
    reply = Message(message.content, reply_to=message)
    masked = ArrayRecord({"masked": Array(np.zeros(8, np.uint8))})
    reply.content[SECURE_SUM_KEY] = ConfigRecord({"terms": "{}"})
    reply.content["masked"] = masked
    return [reply]


HOSTILE: dict[str, App] = {
    "NaN": in_arrays(lambda model: model + np.nan),
    "another shape": in_arrays(lambda model: np.zeros((SIZE, 2))),
    "a masked message of its own": with_another_sum,
    "an error": lambda message: [Message(Error(4711, "patient 4711"), reply_to=message)],
    "no answer": lambda message: [],
}


@pytest.mark.parametrize("app", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_app_adds_zero_and_breaks_no_sum(tmp_path: Path, app: App) -> None:
    gates = gates_of(tmp_path, app, adding(0.1), adding(0.2))
    plan = plan_of(NODES)
    mean = trained(tmp_path, gates, plan)
    assert mean == pytest.approx(np.full(SIZE, 0.3 / NODES), abs=tolerance(plan))
    assert all(here.charges() == 1 for here in gates.sites)


def test_an_update_of_a_thousand_times_the_norm_moves_the_sum_by_the_norm(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, adding(-1e3), adding(0.0), adding(0.0))
    plan = plan_of(NODES)
    mean = trained(tmp_path, gates, plan)
    # Each of the four coordinates has half of the norm.
    assert mean == pytest.approx(np.full(SIZE, -NORM / 2 / NODES), abs=tolerance(plan))


def test_a_spent_budget_adds_noise_alone_and_starts_no_app(tmp_path: Path) -> None:
    gates = gates_of(tmp_path, *[adding(0.1)] * NODES)
    plan = plan_of(NODES)
    gates.sites[0].rewrite(**{"dp-max-epsilon": 1e-3})
    mean = trained(tmp_path, gates, plan)
    assert mean == pytest.approx(np.full(SIZE, 0.2 / NODES), abs=tolerance(plan))
    assert [len(here.seen) for here in gates.sites] == [0, 1, 1]
    assert gates.sites[0].charges() == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sampling_rate": 0.5, "coins_at_nodes": True}, "coins_at_nodes=False"),
        ({"units_per_node": 2, "num_clients": 2 * NODES}, "units_per_node=1"),
    ],
)
def test_what_a_gate_can_t_do_ends_at_the_rehearsal(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    gates = gates_of(tmp_path, *[adding(0.0)] * NODES)
    more = {"secure_sum": SecureSum(reply_after=5.0)} if "coins_at_nodes" in given else {}
    with pytest.raises(RehearsalFailed, match=why):
        trained(tmp_path, gates, plan_of(NODES, **given | more))
    assert all(not here.seen and here.charges() == 0 for here in gates.sites)


PRICE = SumInstruction(rounds=1, epsilon=1.0, delta=1e-5)


BUNDLE = plan_of(NODES).bundle(1.0, size=SIZE)
LARGER = plan_of(NODES, clipping_norm=1.1).bundle(1.0, size=SIZE)
NOISE = NoiseInstruction(scheme="gaussian", noise_multiplier=5.0, clipping_norm=NORM)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"secure_sum": None}, "something else than a secure sum"),
        ({"client_noise": NOISE}, "something else than a secure sum"),
        ({"of_records": True}, "the sum is of records"),
        ({"secure_sum": replace(PRICE, unit="record")}, "the sum is of records"),
        (
            {"secure_sum": replace(PRICE, neighboring_relation="replace-one")},
            "this gate charges for zero-out",
        ),
        ({"max_units": 2}, "one unit of a sum"),
        ({"weight_cap": 10.0}, "one unit of a sum"),
        ({"sampling_rate": 0.5}, "secret coins"),
        ({"bundle": LARGER}, "the owner allows 1 at most"),
    ],
)
def test_a_round_that_asks_for_anything_else_is_refused(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    here = gates_of(tmp_path).sites[0]
    right = RoundInstruction(server_round=1, secure_sum=PRICE, sampling_rate=1.0, bundle=BUNDLE)
    app = RunningApp(name="hospital/heart", version="1.4.0", fab_hash="0" * 64)
    way = DistributedWay(GatePolicy.read(here.file), JudgedRun(app=app, config={}, overrides={}))
    way.require(right)
    instruction = replace(right, **given)
    with pytest.raises(PolicyRefusal, match=why):
        way.require(instruction)
    here.server.train({"w": np.zeros(SIZE)}, {INSTRUCTION_KEY: encode_text(instruction)})
    here.step()
    [arrived] = here.server.arrived
    assert kind_in(arrived.message.error.reason) == "PolicyRefusal"
    assert not here.seen
    assert here.charges() == 0


def test_a_training_outside_of_a_sum_is_refused(tmp_path: Path) -> None:
    here = gates_of(tmp_path).sites[0]
    here.server.train({"w": np.zeros(SIZE)})
    here.step()
    [arrived] = here.server.arrived
    assert arrived.message.error.reason == "PolicyRefusal"
    assert not here.seen


def test_a_sum_with_a_site_whose_app_is_told_another_configuration_does_not_open(
    tmp_path: Path,
) -> None:
    """A server can't single a site out by what its app is told besides messages."""
    gates = gates_of(tmp_path, *[adding(0.1)] * NODES)
    gates.sites[1].server.overrides = {"lr": 0.0}
    with pytest.raises(RoundFailed, match="can't be opened"):
        trained(tmp_path, gates, plan_of(NODES))


def test_a_sum_with_a_site_whose_app_is_another_bundle_does_not_open(tmp_path: Path) -> None:
    """A server can't let other sites run an app that adds nothing."""
    gates = gates_of(tmp_path, *[adding(0.1)] * NODES)
    gates.sites[1].server.fab = bundle(PROJECT.replace("lr = 0.1", "lr = 0.1  # and other code"))
    with pytest.raises(RoundFailed, match="can't be opened"):
        trained(tmp_path, gates, plan_of(NODES))


def test_a_node_without_a_gate_among_gates_ends_at_the_rehearsal(tmp_path: Path) -> None:
    """Nothing but a gate can tell for which bundle it answers."""
    (tmp_path / "others").mkdir()
    gates = gates_of(tmp_path, *[adding(0.1)] * NODES)
    others = SecureNodes(tmp_path / "others", [[[np.full(SIZE, 0.1)]]] * NODES)

    class Mixed:
        introduces = True

        def __call__(self, message: Message, node: int) -> Message | None:
            return others(message, node) if node == 1 else gates(message, node)

    plan = plan_of(NODES)
    with PrivacyLedger.open(tmp_path / "server.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger)
        with pytest.raises(RehearsalFailed, match="a gate at each node or at none"):
            strategy.start(LocalGrid(Mixed(), NODES), ArrayRecord({"w": Array(np.zeros(SIZE))}))
        assert ledger.rounds_spent == 0
    assert all(not here.seen and here.charges() == 0 for here in gates.sites)


def test_a_configuration_that_changes_after_it_was_judged_does_not_reach_the_supernode(
    tmp_path: Path,
) -> None:
    here = gates_of(tmp_path).sites[0]
    for overrides in ({}, {"lr": 0.0}):
        here.server.overrides = overrides
        here.server.train({"w": np.zeros(SIZE)})
        here.step()
    assert not here.node.call("get-run", run_id=RUN).run.override_config
